"""Measured throughput over time, what it costs, and the phases of each step."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

import polars as pl

from rlscope import format as fmt
from rlscope.analysis.result import AnalysisResult, RunFacts
from rlscope.reports.blocks import Block, Charts, Instead
from rlscope.reports.card import throughput_blocks
from rlscope.reports.charts import training
from rlscope.reports.charts.training import PHASES
from rlscope.reports.figure import Drawn, Figure, drawn, drawn_frame
from rlscope.reports.text.ledger import dropped_of
from rlscope.reports.text.states import state_of


def throughput_section(analysis: AnalysisResult) -> Sequence[Block]:
    """Return the blocks of the section. Charts without data are only in the list of what is not shown."""
    draw = partial(training.step_phases, waits=wait_state(analysis), others=other_state(analysis))
    frame = phases_frame(analysis.answers, analysis.run)
    figures = (_rates(analysis), drawn_frame(_PHASES._replace(draw=draw), frame, analysis.run))
    return [
        *throughput_blocks(analysis),
        Charts([each for each in figures if each.spec]),
        Instead("", [each for each in figures if not each.spec]),
    ]


def _rates(analysis: AnalysisResult) -> Drawn:
    """Draw the rates over time; without deliveries nothing is drawn, because zeros would be a claim."""
    if analysis.run.tokens_trained is None:
        return drawn_frame(_RATES._replace(empty=_LOST), None, analysis.run)
    if analysis.throughput.counted_tokens is None:
        return drawn(_RATES.saying(rates_reading(analysis)), analysis)
    return drawn_frame(_RATES._replace(empty=_BY_STEP_ALONE), None, analysis.run)


def rates_reading(analysis: AnalysisResult) -> str:
    """The caption of the rates: whether more is generated than trained in this run."""
    rates, dropped = analysis.throughput, dropped_of(analysis)
    trained, generated = rates.achieved_tokens_per_s, rates.generated_tokens_per_s
    more = "" if not trained or not generated or generated / trained < 1.0 + _APART_RATIO else (
        f" {fmt.significant(generated / trained)} times as many tokens are generated as trained: samples pile up, or "
        "are dropped."
    )  # fmt: skip
    drops = f" {fmt.percent(dropped)} of the tokens taken from the queue were dropped." if more and dropped else ""
    return f"Tokens per second. Shaded: the steady state.{more}{drops} Healthy: both lines steady and close together."


def wait_state(analysis: AnalysisResult) -> str:
    """The state that nearly all waiting of the trainers is in, by name; `waiting` if there are several."""
    return _nearly_all(
        {name: s for name, s in _trainer_s(analysis).items() if state_of(name).kind == "wait"}, "waiting"
    )


def other_state(analysis: AnalysisResult) -> str:
    """The state that nearly all other activities of the trainers are in, by name; `other` if there are several."""
    return _nearly_all({name: s for name, s in _trainer_s(analysis).items() if name in _OTHERS}, "other")


def _nearly_all(gpu_s: Mapping[str, float], several: str) -> str:
    most = max(gpu_s, key=lambda name: gpu_s[name], default=None)
    return several if most is None or gpu_s[most] < _NEARLY_ALL_RATIO * sum(gpu_s.values()) else most


def _trainer_s(analysis: AnalysisResult) -> dict[str, float]:
    """GPU-seconds of the trainers by state over the steady state, which the phases show; else in the whole run."""
    timeline, window = analysis.answers.get("ledger_timeline"), analysis.run.window
    sums: dict[str, float] = {}
    if timeline is not None and window is not None:
        inside = pl.col("bucket_start_ns").is_between(window.start_ns, window.end_ns, closed="left")
        rows = timeline.filter(inside, pl.col("role") == "trainer").group_by("state").agg(pl.col("gpu_s").sum())
        sums = dict(rows.rows())
    if not sums:
        for line in analysis.ledger.states:
            if line.role == "trainer":
                sums[line.state] = sums.get(line.state, 0.0) + line.gpu_ns / 1e9
    return sums


def phases_frame(answers: Mapping[str, pl.DataFrame], run: RunFacts) -> pl.DataFrame | None:
    """The steps of the steady state, or all if there is none, with seconds per trainer GPU by phase.

    rest_s is what no phase covers of the time since the end of the step before; null for the first step.
    """
    costs, steps = answers.get("trainer_steps"), answers.get("training_steps")
    if costs is None or steps is None or costs.is_empty():
        return costs
    named = {name: pl.col(f"{name[:-2]}_gpu_s") / pl.col("trainer_gpus") for name in PHASES if name != "rest_s"}
    rows = costs.filter(pl.col("trainer_gpus") > 0).join(steps.select("step", "period_s"), on="step", how="left")
    rows = rows.select("step", "period_s", **named)
    rows = rows.with_columns(rest_s=(pl.col("period_s") - pl.sum_horizontal(*named)).clip(lower_bound=0.0))
    window = run.window
    return rows if window is None else rows.filter(window.is_inside)


_NEARLY_ALL_RATIO: Final = 0.95
_OTHERS: Final = ("checkpoint", "eval", "reward", "other")
"""The states of activities that trainer_steps counts together."""
_APART_RATIO: Final = 0.1
"""Smaller differences come from samples in flight when a run begins and ends."""
_LOST: Final = "the tokens of the trained samples are unknown"
_BY_STEP_ALONE: Final = "tokens are known by training step only, not over time"
_RATES: Final = Figure(
    "Measured tokens per second",
    "",
    "throughput", "trained_tokens_per_s", training.throughput, "no sample was trained on",
)  # fmt: skip
_PHASES: Final = Figure(
    "Phases of each step",
    "What the trainers did from the end of one step to the end of the next, mean over their GPUs, steady state. "
    "Hatched: not recorded. Healthy: training fills nearly all of a step.",
    "step_phases", "train_s", training.step_phases, "no training step was recorded", False,
    ("trainer_steps", "training_steps"),
)  # fmt: skip
