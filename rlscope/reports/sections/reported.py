"""The figures that the run's framework reports itself, beside which nothing is computed."""

from typing import NamedTuple

from rlscope import format as fmt
from rlscope.analysis.result import AnalysisResult


class ReportedRow(NamedTuple):
    """One figure."""

    name: str
    worker: str
    rows: str
    mean: str
    lowest: str
    highest: str
    last: str


class ReportedSection(NamedTuple):
    """Content of the section."""

    rows: list[ReportedRow]
    by: str
    """Who reports them."""
    no_reason: str | None = None
    """Why there is none; the section is then left out."""


def reported_section(analysis: AnalysisResult) -> ReportedSection:
    """Return the content of the section."""
    frame = analysis.answers.get("reported_values")
    imported = analysis.data_quality.imported
    by = imported.framework if imported is not None else "the framework"
    rows = [] if frame is None else [_row(row) for row in frame.iter_rows(named=True)]
    return ReportedSection(rows, by, None if rows else "the run was recorded by hooks, or its files hold none")


def _row(row: dict[str, object]) -> ReportedRow:
    mean, lowest, highest, last = (_figure(row[name]) for name in ("mean", "min", "max", "last"))
    return ReportedRow(str(row["name"]), str(row["worker_id"]), f"{row['rows']:,}", mean, lowest, highest, last)


def _figure(value: object) -> str:
    return fmt.significant(value) if isinstance(value, float) else fmt.NO_DATA
