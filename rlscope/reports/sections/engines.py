"""Running requests, waiting requests and KV cache of the engines over time."""

from functools import partial
from typing import Final, NamedTuple

import polars as pl

from rlscope import format as fmt
from rlscope.analysis.result import AnalysisResult
from rlscope.model.forecast.result import ModelResult
from rlscope.reports.charts import engines
from rlscope.reports.charts.encoding import LINES_MAX
from rlscope.reports.page.figure import Drawn, Figure, drawn_all

_NO_STEPS: Final = "no engine wrote engine steps"
_NONE_WAITED: Final = "No request ever waited in an engine."
_NAMED: Final = 3
"""Engines with a line of their own if there are too many for a line each."""


class EnginesSection(NamedTuple):
    """What the section shows."""

    figures: list[Drawn]
    note: str
    """What band and lines show if there are many engines; empty if each has a line."""
    none_waited: str
    """Replaces a chart of zeros; empty if a request waited or it is unknown."""


def engines_section(analysis: AnalysisResult) -> EnginesSection:
    """Make the section."""
    frame = analysis.answers.get("batch_size")
    emptiest = [] if frame is None or frame.is_empty() else _emptiest(frame)
    named = emptiest if len(emptiest) <= LINES_MAX else emptiest[:_NAMED]
    note = "" if len(emptiest) <= LINES_MAX else _note(len(emptiest))
    figures = _figures(sorted(named), _efficient_running(analysis))
    none_waited = "" if _has_waiting(analysis.answers.get("waiting_requests")) else _NONE_WAITED
    shown = [figure for figure in figures if not (none_waited and figure.frame == "waiting_requests")]
    return EnginesSection(drawn_all(shown, analysis), note, none_waited)


def _has_waiting(frame: pl.DataFrame | None) -> bool:
    """Whether a request waited, or nothing was recorded."""
    known = None if frame is None or frame.is_empty() else frame["waiting_mean"].drop_nulls()
    return known is None or known.is_empty() or bool((known > 0).any())


def _emptiest(frame: pl.DataFrame) -> list[str]:
    """The engines by mean batch size while running, smallest first."""
    means = frame.group_by("worker_id").agg(running=pl.col("running_mean").mean())
    return list(means.sort("running", "worker_id")["worker_id"])


def _efficient_running(analysis: AnalysisResult) -> int | None:
    """The smallest efficient batch in requests; None if the model has none."""
    model = analysis.model
    if not isinstance(model, ModelResult) or model.efficiency is None:
        return None
    return model.efficiency.efficient_running


def _note(engine_count: int) -> str:
    low, high = (fmt.count(round(10 * quantile)) for quantile in engines.MIDDLE)
    return (
        f"{fmt.count(engine_count)} engines: the band spans decile {low} to decile {high} of the running engines, with "
        f"their median. The {fmt.count(_NAMED)} engines with the smallest mean batch are drawn as lines."
    )


def _figures(named: list[str], efficient_running: int | None) -> tuple[Figure, ...]:
    healthy = "Healthy: steady and high."
    if efficient_running is not None:
        healthy = "Dashed line: smallest efficient batch (modelled). Healthy: steady, and at or above that line."
    return (
        Figure(
            "Running requests",
            "Batch size of each engine, averaged over time. Constantly low: too few requests arrive. Regular drops to "
            "zero: engines drain at a barrier or for weight updates. " + healthy,
            "batch_size", "running_mean",
            partial(engines.batch_size, named=named, efficient_running=efficient_running), _NO_STEPS, True,
        ),
        Figure(
            "Waiting requests",
            "Above zero, the engine has more requests than fit; more engines or more KV cache would help. Healthy: "
            "near zero.",
            "waiting_requests", "waiting_mean", partial(engines.waiting_requests, named=named), _NO_STEPS, True,
        ),
        Figure(
            "KV cache in use",
            "Tokens in the KV cache. Near capacity, requests wait or are preempted. Healthy: high, but below capacity.",
            "kv_use", "kv_used_mean_tokens", partial(engines.kv_use, named=named),
            "no engine reported kv_used_tokens", True,
        ),
    )  # fmt: skip
