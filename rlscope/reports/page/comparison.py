"""A comparison as an HTML page, which adds charts of all runs on one scale."""

from collections.abc import Callable
from functools import partial
from importlib import metadata
from typing import Final

import polars as pl

from rlscope.comparison.differences import with_gpu_hours
from rlscope.comparison.facts import ComparedRun, version_steps
from rlscope.comparison.runs import RunComparison
from rlscope.reports.blocks import Charts
from rlscope.reports.charts import comparison as charts
from rlscope.reports.figure import Drawn, Figure, drawn_frame
from rlscope.reports.page.html import page, page_scripts
from rlscope.reports.sections import Section
from rlscope.reports.text.comparison import first_screen, letter_of, pair_blocks, repeated_parts

_SCRIPTS: Final = ("folds.js", "report.js")
"""zoom.js is left out because no chart here has a time axis."""


def render_comparison(compared: RunComparison) -> str:
    """Return the page as HTML."""
    title = " against ".join((", ".join(run.name for run in compared.runs[1:]), compared.baseline.name))
    repeated, pairs = repeated_parts(compared), pair_blocks(compared)
    sections = [
        *(Section(f"repeated-{n}", part.title, "Repeated runs", part.blocks) for n, part in enumerate(repeated, 1)),
        *(Section(f"pair-{n}", pair.part.title, pair.title, pair.part.blocks) for n, pair in enumerate(pairs, 1)),
        Section("charts", "All runs on one scale", "Charts", [Charts(figures_of(compared))]),
    ]
    words = dict[str, object](
        header=title,
        about=(),
        first=first_screen(compared),
        sections=sections,
        zoom=None,
        foot=f"Compared by rlscope {metadata.version('rlscope')}.",
    )
    return page("report.html", title, words, page_scripts(_SCRIPTS))


def figures_of(compared: RunComparison) -> list[Drawn]:
    """Return the figures, those that have nothing to draw too."""
    # Versions are no common unit of runs that differ in the number of steps per version.
    in_steps = any(version_steps(compared.baseline, pair.run) is not None for pair in compared.pairs)
    frame_of = {
        "step_times": _steps,
        "staleness": partial(_staleness, in_steps=in_steps),
        "lengths": _lengths,
        "rewards": _learning,
        "rewards_by_gpu_hours": _learning,
    }
    run = compared.baseline.run
    return [drawn_frame(figure, _by_run(compared, frame_of[figure.name]), run) for figure in _FIGURES]


def _by_run(compared: RunComparison, frame_of: Callable[[ComparedRun], pl.DataFrame | None]) -> pl.DataFrame | None:
    """Return the frames of the runs below each other, each with the letter of its run; None without one."""
    frames = [(letter_of(n), frame_of(run)) for n, run in enumerate(compared.runs)]
    lettered = [frame.select(pl.lit(name).alias("run"), pl.all()) for name, frame in frames if frame is not None]
    return pl.concat(lettered) if lettered else None


def _steps(run: ComparedRun) -> pl.DataFrame | None:
    return None if run.table is None else pl.DataFrame({"step": run.table.step, "step_s": run.table.step_s})


def _staleness(run: ComparedRun, *, in_steps: bool) -> pl.DataFrame | None:
    """Return the share of trained tokens by staleness: in whole optimizer steps, or in versions."""
    ages = () if run.staleness.tokens is None else run.staleness.tokens.histogram
    if not (total := sum(tokens for _, tokens in ages)):
        return None
    span, unit = ((run.steps_per_version or 1.0), "optimizer steps") if in_steps else (1, "versions")
    frame = pl.DataFrame({"staleness": [round(age * span) for age, _ in ages], "tokens": [n for _, n in ages]})
    shares = frame.group_by("staleness", maintain_order=True).agg(share_ratio=(pl.col("tokens") / total).sum())
    return shares.with_columns(unit=pl.lit(unit))


def _lengths(run: ComparedRun) -> pl.DataFrame:
    """Return the share of generated samples that are at most as long as each bin."""
    samples = pl.col("finished_samples") + pl.col("capped_samples")
    return (
        run.answers["response_lengths"]
        .sort("length_to_tokens")
        .select(pl.col("length_to_tokens").alias("length_tokens"), share_ratio=samples.cum_sum() / samples.sum())
    )


def _learning(run: ComparedRun) -> pl.DataFrame:
    return with_gpu_hours(run).select("step", "gpu_hours", "reward_mean").drop_nulls("reward_mean")


_NO_STEPS: Final = "no run has steps in steady state"
_NO_REWARD: Final = "no run recorded rewards"
_FIGURES: Final = (
    Figure(
        "Step time",
        "Steps in steady state. If the step numbers differ, the runs are also at different points of training.",
        "step_times", "step_s", charts.step_times, _NO_STEPS,
    ),
    Figure(
        "Token staleness, whole runs", "Share of the trained tokens at each staleness.",
        "staleness", "share_ratio", charts.staleness, "no trained token has a known version",
    ),
    Figure(
        "Response lengths, whole runs",
        "Share of generated samples up to each length; further right is longer.",
        "lengths", "share_ratio", charts.lengths, "no finished sample was recorded",
    ),
    Figure(
        "Reward by training step", "Mean reward at each training step.",
        "rewards", "reward_mean", partial(charts.rewards, by_step=True), _NO_REWARD,
    ),
    Figure(
        "Reward by GPU-hours", "Mean reward by GPU-hours used.",
        "rewards_by_gpu_hours", "reward_mean", partial(charts.rewards, by_step=False), _NO_REWARD,
    ),
)  # fmt: skip
