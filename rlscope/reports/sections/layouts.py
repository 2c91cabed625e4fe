"""Predicted throughput and staleness of other layouts, time to finish, and assumptions."""

from collections.abc import Sequence
from functools import partial
from typing import Final

import polars as pl

from rlscope import format as fmt
from rlscope.analysis.result import AnalysisResult
from rlscope.model.forecast.result import ModelResult
from rlscope.reports.blocks import Block, Bullets, Charts, Fold, Nothing, Panel, Paragraph, Part
from rlscope.reports.charts import model as charts
from rlscope.reports.charts.model_frames import frontier_frame, is_over_splits, sweep_frame
from rlscope.reports.figure import Figure, drawn_frame
from rlscope.reports.text import model as model_words
from rlscope.reports.text import panel as panel_words


def one_staleness(frontier: pl.DataFrame) -> str:
    """Return a sentence if all layouts are equally stale, so that a chart would be one column; else empty."""
    known = frontier["sample_staleness_p95"].drop_nulls().unique()
    if len(known) != 1:
        return ""
    versions = fmt.counted(int(known[0]), "version", "versions")
    return f"All layouts have the same sample staleness: {versions} at the 95th percentile."


def layouts_section(analysis: AnalysisResult) -> Sequence[Block]:
    """Return the blocks of the section."""
    result, run = analysis.model, analysis.run
    if not isinstance(result, ModelResult):
        return [Nothing(model_words.no_result_sentence(result))]
    frames = sweep_frame(result), frontier_frame(result)
    sweep = drawn_frame(_SWEEP.saying(sweep_reading(frames[0])), frames[0], run)
    same = one_staleness(frames[1])
    frontier = [] if same else [drawn_frame(_FRONTIER, frames[1], run)]
    remarks = Part("Warnings and assumptions", [Bullets(model_words.remarks(result))])
    more = [model_words.finish_part(result, run), remarks]
    return [
        *([Paragraph(same, "note")] if same else []),
        Charts([sweep, *frontier]),
        Panel("try", panel_words.TITLE, partial(panel_words.panel, result, run.currency)),
        Fold("layouts-more", "Time to finish and assumptions", more),
    ]


def sweep_reading(frame: pl.DataFrame) -> str:
    """Return the caption of the layouts; over splits, their axis explains itself."""
    split = "" if is_over_splits(frame) else " 1 : 2 means 1 trainer GPU, 2 sampler GPUs."
    return f"Predicted medians with 90% intervals.{split} Healthy: the current layout is at the top."


_SWEEP: Final = Figure(
    "Predicted throughput by layout",
    "",
    "sweep", "tokens_per_s", charts.sweep, "no other layout is feasible",
)  # fmt: skip
_FRONTIER: Final = Figure(
    "Predicted throughput against staleness cap",
    "Line: the fastest layout whose samples keep a staleness cap (p95), by cap. Healthy: the current layout is on it; "
    "below it, another layout is faster, or as fast with fresher tokens.",
    "frontier", "tokens_per_s", charts.frontier, "no layout has a known staleness",
)  # fmt: skip
