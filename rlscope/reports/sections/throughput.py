"""Measured throughput over time, what it costs, and the phases of each step."""

from collections.abc import Mapping, Sequence
from typing import Final

import polars as pl

from rlscope.analysis.result import AnalysisResult, RunFacts
from rlscope.reports.blocks import Block, Charts
from rlscope.reports.card import throughput_blocks
from rlscope.reports.charts import training
from rlscope.reports.charts.training import PHASES
from rlscope.reports.figure import Figure, drawn_frame


def throughput_section(analysis: AnalysisResult) -> Sequence[Block]:
    """Return the blocks of the section."""
    answers, run = analysis.answers, analysis.run
    # Tokens that are counted by step would be drawn as zeros over time.
    knows_times = run.tokens_trained is not None and analysis.throughput.counted_tokens is None
    rates = answers["throughput"] if knows_times else None
    figures = [drawn_frame(_RATES, rates, run), drawn_frame(_PHASES, phases_frame(answers, run), run)]
    return [*throughput_blocks(analysis), Charts(figures)]


def phases_frame(answers: Mapping[str, pl.DataFrame], run: RunFacts) -> pl.DataFrame:
    """The steps of the steady state, or all if there is none, with seconds per trainer GPU by phase.

    rest_s is what no phase covers of the time since the end of the step before; null for the first step.
    """
    costs, steps = answers["trainer_steps"], answers["training_steps"]
    named = {name: pl.col(f"{name[:-2]}_gpu_s") / pl.col("trainer_gpus") for name in PHASES if name != "rest_s"}
    rows = costs.filter(pl.col("trainer_gpus") > 0).join(steps.select("step", "step_s"), on="step", how="left")
    rows = rows.select("step", "step_s", **named)
    rows = rows.with_columns(rest_s=(pl.col("step_s") - pl.sum_horizontal(*named)).clip(lower_bound=0.0))
    window = run.window
    return rows if window is None else rows.filter(window.is_inside)


_RATES: Final = Figure(
    "Measured tokens per second",
    "Tokens per second. Shaded: the steady state. Healthy: both lines steady and close together; if much more is "
    "generated than trained, samples pile up or are dropped.",
    "throughput", "trained_tokens_per_s", training.throughput, "the tokens trained on are not known over time",
)  # fmt: skip
_PHASES: Final = Figure(
    "Phases of each step",
    "What the trainers did from the end of one step to the end of the next, mean over their GPUs, steady state. "
    "Hatched: not recorded. Healthy: training fills nearly all of a step.",
    "step_phases", "train_s", training.step_phases, "no training step was recorded", False,
    ("trainer_steps", "training_steps"),
)  # fmt: skip
