"""Training over time: throughput, the phases of each step, and reward, loss and other metrics above the staleness."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

import polars as pl

from rlscope.analysis.result import AnalysisResult, RunFacts
from rlscope.reports.blocks import Asked, Block, Charts, Paragraph, Switch, View
from rlscope.reports.card import throughput_blocks
from rlscope.reports.charts import training
from rlscope.reports.charts.training import PHASES
from rlscope.reports.figure import Figure, drawn_frame
from rlscope.reports.text.learning import all_sentences

NAMES: Final = {
    "reward_mean": "reward",
    "finished_reward_mean": "reward of responses that finished",
    "truncated_ratio": "share of truncated responses",
    "loss": "loss",
    "entropy": "entropy, nats",
    "grad_norm": "gradient norm",
    "clip_ratio": "share of clipped tokens",
    "staleness_mean": "token staleness, mean, versions",
    "staleness_p95": "token staleness, p95, versions",
}
"""The columns of a metric, in the order of their bands, and their names."""


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


def metrics_frame(answers: Mapping[str, pl.DataFrame]) -> pl.DataFrame | None:
    """A row per step: step, gpu_hours spent until its end, and the metrics that were recorded, by name.

    None if no metric was recorded: staleness alone has its own section. Truncation is left out if there is none.
    """
    steps, ages = answers["training_metrics"], answers["token_staleness_by_step"]
    cut = answers["truncation_by_step"]
    if cut["truncated_ratio"].sum():
        steps = steps.join(cut, on="step", how="left")
    reported = [name for name in NAMES if name in steps.columns and _is_known(steps[name])]
    if not reported:
        return None
    frame = steps.select("step", _gpu_hours(answers["worker_extents"]), *reported)
    # Deliveries may name other steps than the trainers do.
    ages = ages.join(steps, on="step", how="semi")
    known = [name for name in ("staleness_mean", "staleness_p95") if _is_known(ages[name])]
    frame = frame.join(ages.select("step", *known), on="step", how="left")
    return frame.sort("step").rename({name: NAMES[name] for name in frame.columns if name in NAMES})


def _is_known(column: pl.Series) -> bool:
    return bool(column.cast(pl.Float64).is_finite().any())


def _gpu_hours(extents: pl.DataFrame) -> pl.Expr:
    """GPU-hours of all workers from their start to the end of the step; null if no worker owns a GPU."""
    spent_ns = [
        (pl.col("end_ns").clip(upper_bound=end_ns) - start_ns).clip(lower_bound=0) * gpus
        for start_ns, end_ns, gpus in extents.select("start_ns", "end_ns", "gpu_count").rows()
        if gpus
    ]
    hours = pl.sum_horizontal(spent_ns) / 3.6e12 if spent_ns else pl.lit(None, pl.Float64)
    return hours.alias("gpu_hours")


def training_section(analysis: AnalysisResult) -> Sequence[Block]:
    """Return the blocks of the section."""
    frame, run = metrics_frame(analysis.answers), analysis.run
    by_step = drawn_frame(_figure("By step", "step", "training step"), frame, run)
    by_hours = drawn_frame(_figure("By GPU-hours", "gpu_hours", "GPU-hours"), frame, run)
    sentences = all_sentences(analysis)
    said = [Paragraph(" ".join(sentences)), Asked(["reward_moments"])] if sentences else []
    views = (View("step", "by step", by_step), View("hours", "by GPU-hours", by_hours))
    return [Switch("along", "Horizontal axis", views), *said]


def _figure(title: str, along: str, axis: str) -> Figure:
    return Figure(
        title,
        "Each band has its own scale, from its lowest to its highest value. Healthy: reward rises, the others stay "
        "steady, and nothing jumps when staleness does.",
        f"metrics_by_{along}", along, partial(training.metrics, along=along, title=axis),
        "no reward, loss, entropy or gradient norm was recorded", True,
        ("training_metrics", "truncation_by_step", "token_staleness_by_step", "worker_extents"),
    )  # fmt: skip


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
