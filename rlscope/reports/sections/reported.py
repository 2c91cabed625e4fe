"""The figures that the run's framework reports itself, beside which nothing is computed."""

from collections.abc import Mapping, Sequence
from typing import Any

from rlscope import format as fmt
from rlscope.analysis.result import AnalysisResult
from rlscope.reports.blocks import Block, Nothing, Paragraph, Table


def reported_section(analysis: AnalysisResult) -> Sequence[Block]:
    """Return the blocks of the section."""
    frame, imported = analysis.answers.get("reported_values"), analysis.data_quality.imported
    if frame is None or frame.is_empty():
        return [Nothing("the run was recorded by hooks, or its files hold none")]
    by = imported.framework if imported is not None else "the framework"
    columns = ("name", "worker", "rows", "mean", "minimum", "maximum", "last")
    return [
        Paragraph(
            f"As reported by {by}, in its own units and with its own definitions. The rest of this report does not use "
            "these metrics, and similar names may have other meanings."
        ),
        Table("Figures that the framework reports itself", columns, list(map(_row, frame.rows(named=True))), "stacks"),
    ]


def _row(row: Mapping[str, Any]) -> list[str]:
    values = (row[name] for name in ("mean", "min", "max", "last"))
    return [str(row["name"]), str(row["worker_id"]), f"{row['rows']:,}", *map(fmt.significant, values)]
