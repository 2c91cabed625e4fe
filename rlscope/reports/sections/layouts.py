"""Predicted throughput and staleness of other layouts, sensitivities, time to finish, and assumptions."""

from typing import Final, NamedTuple

import polars as pl

from rlscope import format as fmt
from rlscope.analysis.observe import ASKED_OF_A_STRETCH
from rlscope.analysis.result import AnalysisResult
from rlscope.model.forecast.result import ModelResult
from rlscope.reports.charts import model as charts
from rlscope.reports.charts.model_frames import OUT, SIMULATED, frontier_frame, is_over_splits, sweep_frame
from rlscope.reports.page.figure import Drawn, Figure, drawn_frame
from rlscope.reports.text import model as model_words


class LayoutsSection(NamedTuple):
    """Content of the section."""

    no_reason: str | None
    """Why there is no model result; None if there is one."""
    figures: tuple[Drawn, ...] = ()
    sensitivity_title: str = model_words.SENSITIVITY_TITLE
    sensitivity_rows: tuple[model_words.SensitivityRow, ...] = ()
    sensitivity: str = ""
    finish: str = ""
    finish_rows: tuple[model_words.FinishRow, ...] = ()
    remarks: tuple[str, ...] = ()
    one_staleness: str = ""
    """Sentence shown instead of the second figure if all layouts are equally stale; empty otherwise."""


def one_staleness(frontier: pl.DataFrame) -> str:
    """Return a sentence if all layouts are equally stale, so that a chart would be one column; else empty."""
    known = frontier["sample_staleness_p95"].drop_nulls().unique()
    if len(known) != 1:
        return ""
    versions = fmt.counted(int(known[0]), "version", "versions")
    return f"All layouts have the same sample staleness: {versions} at the 95th percentile."


def layouts_section(analysis: AnalysisResult) -> LayoutsSection:
    """Return the content of the section."""
    result = analysis.model
    if not isinstance(result, ModelResult):
        return LayoutsSection(model_words.no_result_sentence(result))
    frontier, sweep = frontier_frame(result), sweep_frame(result)
    return LayoutsSection(
        no_reason=None,
        figures=(
            drawn_frame(_SWEEP._replace(reading=sweep_reading(sweep)), "figure-sweep", sweep, analysis.run),
            drawn_frame(_FRONTIER, "figure-frontier", frontier, analysis.run),
        ),
        one_staleness=one_staleness(frontier),
        sensitivity_rows=tuple(model_words.sensitivity_rows(result)),
        sensitivity=model_words.sensitivity_sentence(result),
        finish=model_words.finish_sentence(result, analysis.run),
        finish_rows=tuple(model_words.finish_rows(result)),
        remarks=tuple(model_words.remarks(result)),
    )


def sweep_reading(frame: pl.DataFrame) -> str:
    """The caption of the layouts: what is drawn of this run."""
    series = frame["series"]
    split = "" if is_over_splits(frame) else " 1 : 2 means 1 trainer GPU, 2 sampler GPUs."
    has_simulated = series.str.ends_with(SIMULATED).any()
    simulated = " Simulated: a limit applies that no closed form covers; the two can differ." if has_simulated else ""
    crosses = " Crosses: infeasible." if series.str.starts_with(OUT).any() else ""
    return (
        "Points: predicted medians with 90% intervals; a gain's is narrower, as it is computed draw by draw. A line "
        f"joins layouts that differ in the axis alone.{split}{simulated}{crosses} Healthy: the current layout is "
        "at the top."
    )


_SWEEP: Final = Figure(
    "Predicted throughput by layout",
    "",
    "", "tokens_per_s", charts.sweep, "no other layout is feasible", False, ASKED_OF_A_STRETCH,
)  # fmt: skip
_FRONTIER: Final = Figure(
    "Predicted throughput against staleness cap",
    "Points: layouts. Line: the fastest layout whose samples keep a staleness cap (p95), by cap. Healthy: the current "
    "layout is on it. Below it, another layout is as fast with fresher tokens.",
    "", "tokens_per_s", charts.frontier, "no layout has a known staleness", False, ASKED_OF_A_STRETCH,
)  # fmt: skip
