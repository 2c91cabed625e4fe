# Polars names numpy in its signatures, and numpy is not installed: hence the unknown member types.
# pyright: reportUnknownMemberType=false
"""How full every engine was, what waited in it, and its KV cache, over time and on one axis."""

from functools import partial
from typing import Final, NamedTuple

import polars as pl

from rlscope import format as fmt
from rlscope.analysis.result import Analysis
from rlscope.model.forecast.result import ModelResult
from rlscope.reports.charts import engines
from rlscope.reports.charts.encoding import LINES_MAX
from rlscope.reports.page.figure import Drawn, Figure, drawn_all

_NO_STEPS: Final = "no engine wrote engine steps"
_NONE_WAITED: Final = "No request waited in an engine at any time: there was room for all that arrived."
_NAMED: Final = 3
"""Engines that are drawn by themselves where there are too many for a line each."""


class EnginesSection(NamedTuple):
    """What the section shows."""

    figures: list[Drawn]
    note: str
    """How many engines are drawn how; empty where each is a line."""
    none_waited: str
    """What stands for a picture of nothing but zeros; empty where a request waited, or nobody knows."""


def engines_section(analysis: Analysis) -> EnginesSection:
    """The section's figures."""
    frame = analysis.answers.get("batch_size")
    emptiest = [] if frame is None or frame.is_empty() else _emptiest(frame)
    named = emptiest if len(emptiest) <= LINES_MAX else emptiest[:_NAMED]
    note = "" if len(emptiest) <= LINES_MAX else _note(len(emptiest))
    figures = _figures(sorted(named), _efficient_running(analysis))
    none_waited = "" if _has_waiting(analysis.answers.get("waiting_requests")) else _NONE_WAITED
    shown = [figure for figure in figures if not (none_waited and figure.frame == "waiting_requests")]
    return EnginesSection(drawn_all(shown, analysis), note, none_waited)


def _has_waiting(frame: pl.DataFrame | None) -> bool:
    """Whether there is something to draw, or to say that it is missing."""
    known = None if frame is None or frame.is_empty() else frame["waiting_mean"].drop_nulls()
    return known is None or known.is_empty() or bool((known > 0).any())


def _emptiest(frame: pl.DataFrame) -> list[str]:
    """The engines, that of the smallest batch first: the mean over the stretches in which it ran."""
    means = frame.group_by("worker_id").agg(running=pl.col("running_mean").mean())
    return list(means.sort("running", "worker_id")["worker_id"])


def _efficient_running(analysis: Analysis) -> int | None:
    """The smallest efficient batch, in requests; None where the model does not know it."""
    model = analysis.model
    if not isinstance(model, ModelResult) or model.efficiency is None:
        return None
    return model.efficiency.efficient_running


def _note(engine_count: int) -> str:
    low, high = (fmt.count(round(10 * quantile)) for quantile in engines.MIDDLE)
    return (
        f"Of {fmt.count(engine_count)} engines: the band goes from decile {low} to decile {high} of those that "
        f"ran, with their median; the {fmt.count(_NAMED)} with the smallest mean batch have lines of their own."
    )


def _figures(named: list[str], efficient_running: int | None) -> tuple[Figure, ...]:
    efficient = (
        "" if efficient_running is None else " The dashed line is the smallest batch that the model calls efficient."
    )
    return (
        Figure(
            "Running requests",
            "The batch of every engine, averaged over time. Low and level: too few requests arrive. Saw teeth down to "
            "zero: engines drain, by a barrier or by weight updates." + efficient + " Healthy: level, and "
            "no smaller than is efficient.",
            "batch_size", "running_mean",
            partial(engines.batch_size, named=named, efficient_running=efficient_running), _NO_STEPS, True,
        ),
        Figure(
            "Requests that wait in the engine",
            "Above zero, the engine has more to do than fits: more engines, or more KV cache, would help. Healthy: "
            "near zero.",
            "waiting_requests", "waiting_mean", partial(engines.waiting_requests, named=named), _NO_STEPS, True,
        ),
        Figure(
            "KV cache in use",
            "Tokens held in the KV cache. Near the capacity, requests are preempted or wait. Healthy: high, and below "
            "the capacity.",
            "kv_use", "kv_used_mean_tokens", partial(engines.kv_use, named=named),
            "no engine reported kv_used_tokens", True,
        ),
    )  # fmt: skip
