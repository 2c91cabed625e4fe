"""Predicted throughput and staleness of other layouts, time to finish, and assumptions."""

from collections.abc import Sequence
from functools import partial
from typing import Final

import polars as pl

from rlscope import format as fmt
from rlscope.analysis.result import AnalysisResult
from rlscope.model.forecast.result import ModelResult
from rlscope.reports.blocks import Block, Fold, Nothing, Panel, Paragraph
from rlscope.reports.charts import model as charts
from rlscope.reports.charts.model_frames import frontier_frame
from rlscope.reports.figure import Figure, drawn_frame
from rlscope.reports.text import model as model_words
from rlscope.reports.text import panel as panel_words


def instead_of_chart(frontier: pl.DataFrame) -> str:
    """Return a sentence if all layouts are equally stale, or none has a known staleness; empty for any other."""
    known = frontier["sample_staleness_p95"].unique()
    if len(known) > 1:
        return ""
    if not len(known):
        return "No layout has a known staleness."
    versions = fmt.counted(int(known[0]), "version", "versions")
    return f"All layouts have the same sample staleness: {versions} at the 95th percentile."


def layouts_section(analysis: AnalysisResult) -> Sequence[Block]:
    """Return the blocks of the section."""
    result, run = analysis.model, analysis.run
    if not isinstance(result, ModelResult):
        return [Nothing(model_words.no_result_sentence(result))]
    frame = frontier_frame(result)
    said = instead_of_chart(frame)
    return [
        Paragraph(said, "note") if said else drawn_frame(_FRONTIER, frame, run),
        Panel("try", panel_words.TITLE, partial(panel_words.panel, result, run.currency)),
        Fold("layouts-more", "Time to finish and assumptions", [*model_words.outlook_parts(result)]),
    ]


_FRONTIER: Final = Figure(
    "Predicted throughput against staleness cap",
    "Line: the fastest layout whose samples keep a staleness cap (p95), by cap. Healthy: the current layout is on it; "
    "below it, another layout is faster, or as fast with fresher tokens.",
    "frontier", "tokens_per_s", charts.frontier, "no layout has a known staleness", True,
)  # fmt: skip
