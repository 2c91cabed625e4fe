"""A comparison as an HTML page, which adds charts of all runs on one scale."""

from functools import partial
from importlib import metadata
from typing import Final

import polars as pl

from rlscope.comparison.differences import with_gpu_hours
from rlscope.comparison.facts import version_steps
from rlscope.comparison.runs import RunComparison
from rlscope.reports.blocks import Charts
from rlscope.reports.charts import comparison as charts
from rlscope.reports.figure import Drawn, Figure, drawn_frame
from rlscope.reports.page.html import Charts as PageCharts
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


def comparison_charts(compared: RunComparison) -> PageCharts:
    """Return the charts of a comparison."""
    return PageCharts(lambda: figures_of(compared))


def figures_of(compared: RunComparison) -> list[Drawn]:
    """Return the figures, those that have nothing to draw too."""
    facts, learned = compared.baseline.facts, _learning_frame(compared)
    frames = {
        "step_periods": _step_frame(compared),
        "staleness": _staleness_frame(compared),
        "lengths": _lengths_frame(compared),
        "rewards": learned,
        "rewards_by_gpu_hours": learned,
    }
    return [drawn_frame(figure, frames[figure.name], facts) for figure in _FIGURES]


def _step_frame(compared: RunComparison) -> pl.DataFrame | None:
    parts = [
        pl.DataFrame({"step": run.table.step, "period_s": run.table.period_s}).with_columns(run=pl.lit(letter_of(n)))
        for n, run in enumerate(compared.runs)
        if run.table is not None
    ]
    return pl.concat(parts).select("run", "step", "period_s") if parts else None


def _staleness_frame(compared: RunComparison) -> pl.DataFrame | None:
    """Return the share of trained tokens by staleness.

    The unit is whole optimizer steps if the runs differ in the number of steps per version, else versions.
    """
    in_steps = any(version_steps(compared.baseline, pair.run) is not None for pair in compared.pairs)
    rows = [
        (letter_of(index), round(age * (run.steps_per_version or 1.0)) if in_steps else age, tokens / total)
        for index, run in enumerate(compared.runs)
        if (ages := run.staleness.tokens) is not None and (total := sum(tokens for _, tokens in ages.histogram))
        for age, tokens in ages.histogram
    ]
    if not rows:
        return None
    frame = pl.DataFrame(rows, schema=["run", "staleness", "share_ratio"], orient="row")
    shares = frame.group_by("run", "staleness", maintain_order=True).agg(pl.col("share_ratio").sum())
    return shares.with_columns(unit=pl.lit("optimizer steps" if in_steps else "versions"))


def _lengths_frame(compared: RunComparison) -> pl.DataFrame | None:
    """Return the length distribution of generated samples."""
    parts = [
        _up_to(run.lengths.with_columns(samples=pl.col("finished_samples") + pl.col("capped_samples")), letter_of(n))
        for n, run in enumerate(compared.runs)
        if run.lengths is not None and not run.lengths.is_empty()
    ]
    return pl.concat(parts) if parts else None


def _up_to(lengths: pl.DataFrame, name: str) -> pl.DataFrame:
    """Return the share of samples that are at most as long as each bin."""
    return lengths.sort("length_to_tokens").select(
        pl.lit(name).alias("run"),
        pl.col("length_to_tokens").alias("length_tokens"),
        (pl.col("samples").cum_sum() / pl.col("samples").sum()).alias("share_ratio"),
    )


def _learning_frame(compared: RunComparison) -> pl.DataFrame | None:
    parts = [
        with_gpu_hours(run).select(pl.lit(letter_of(index)).alias("run"), "step", "gpu_hours", "reward_mean")
        for index, run in enumerate(compared.runs)
        if run.learning is not None
    ]
    return pl.concat(parts).filter(pl.col("reward_mean").is_not_null()) if parts else None


_NO_STEPS: Final = "no run has steps in steady state"
_NO_REWARD: Final = "no run recorded rewards"
_FIGURES: Final = (
    Figure(
        "Step period",
        "Steps in steady state. If the step numbers differ, the runs are also at different points of training.",
        "step_periods", "period_s", charts.step_periods, _NO_STEPS,
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
