# Polars names numpy in its signatures, and numpy is not installed: hence the unknown member types.
# pyright: reportUnknownMemberType=false
"""The frames of the section on lengths, and what they say in a sentence: the cap, a bias of dropping, long tails."""

from collections.abc import Mapping
from typing import Final

import polars as pl

from rlscope.analysis import RunFacts
from rlscope.report import numbers
from rlscope.report.charts.lengths import TRAINED
from rlscope.run_files import is_integer

# Means that are closer are alike for whoever has to decide whether dropping does harm.
BIAS_RATIO: Final = 0.05
# A cap farther out than this would squeeze the lengths into a corner of the picture.
_CAP_IN_SIGHT: Final = 1.25


def capped_lengths(answers: Mapping[str, pl.DataFrame], run: RunFacts) -> pl.DataFrame | None:
    """response_lengths with the run's cap in `cap_tokens`, null where none is stated or it is far from all lengths."""
    frame = answers.get("response_lengths")
    if frame is None or frame.is_empty():
        return frame
    cap = stated_cap_tokens(run)
    longest = int(frame["length_to_tokens"].max() or 0)  # pyright: ignore[reportArgumentType]
    in_sight = cap if cap is not None and cap <= _CAP_IN_SIGHT * longest else None
    return frame.with_columns(cap_tokens=pl.lit(in_sight, dtype=pl.Int64))


def stated_cap_tokens(run: RunFacts) -> int | None:
    """The most tokens of a response, as the run's config says; None where it says none."""
    cap = run.settings.get("max_output_tokens")
    return cap if isinstance(cap, int) and is_integer(cap) else None


def mirrored_frame(answers: Mapping[str, pl.DataFrame]) -> pl.DataFrame | None:
    """delivered_lengths as shares of the side, trained or not, with the side's mean; None where nothing was dropped."""
    counts, outcomes = answers.get("delivered_lengths"), answers.get("delivery_outcomes")
    if counts is None or outcomes is None or counts.filter(pl.col("outcome") != TRAINED).is_empty():
        return None
    is_trained = (pl.col("outcome") == TRAINED).alias("is_trained")
    recorded = counts.group_by("outcome", is_trained).agg(pl.col("samples").sum().alias("recorded"))
    total = pl.col("mean_output_tokens") * pl.col("recorded")
    means = (
        recorded.join(outcomes.select("outcome", "mean_output_tokens"), on="outcome")
        .group_by("is_trained")
        .agg(side_mean_tokens=total.sum() / pl.col("recorded").sum())
    )
    of_side = pl.col("samples") / pl.col("samples").sum().over(is_trained)
    return (
        counts.with_columns(is_trained, share_of_side_ratio=of_side)
        .join(means, on="is_trained")
        .drop("is_trained", "share_ratio")
    )


def bias_sentence(mirrored: pl.DataFrame | None, answers: Mapping[str, pl.DataFrame]) -> str:
    """What was dropped against what was trained on, by length; why there is nothing to compare."""
    outcomes = answers.get("delivery_outcomes")
    if outcomes is None or outcomes.is_empty():
        return "No delivery was recorded: what was dropped cannot be compared with what was trained on."
    if mirrored is None:
        return "No sample that left the queue was dropped, so dropping changes no length."
    sides = mirrored.group_by(pl.col("outcome") == TRAINED).agg(pl.col("side_mean_tokens").first()).rows()
    means: dict[bool, float] = dict(sides)
    if True not in means:
        return "Nothing was trained on: what was dropped has nothing to be compared with."
    trained, rest = means[True], means[False]
    said = f"What was trained on is {_length(trained)} long on average, what was not {_length(rest)}"
    if not trained or abs(rest - trained) < BIAS_RATIO * trained:
        return f"{said}: dropping leaves the lengths about as they are."
    more, leans = ("more", "shorter") if rest > trained else ("less", "longer")
    apart = numbers.percent(abs(rest / trained - 1))
    return f"{said}, {apart} {more}: dropping makes what is trained on {leans} than what was generated."


def tails_sentence(answers: Mapping[str, pl.DataFrame]) -> str:
    """How far the longest sample of a group stands out, and for how long the others wait for the last one."""
    tails, steps = answers.get("group_tail_counts"), answers.get("training_steps")
    if tails is None or tails.is_empty():
        return ""
    groups = int(tails["groups"].sum())
    up_to = tails["groups"].cum_sum()
    half, most = (_least_end(tails, up_to * 100 >= groups * percent) for percent in (50, 95))
    wait_s = float((tails["last_wait_mean_s"] * tails["groups"]).sum()) / groups
    whole = f"the {numbers.count(groups)} groups the longest sample is less than"
    spread = f"In 95% of {whole} {most} times as long as the mean."
    if half != most:
        spread = f"In half of {whole} {half} times as long as the mean, in 95% less than {most} times."
    said = (
        f"{spread} From the end of a group's median sample to that of its last it takes "
        f"{numbers.duration(wait_s)} on average"
    )
    period_s = None if steps is None or steps.is_empty() else steps["period_s"].mean()
    if not isinstance(period_s, int | float) or not period_s:
        return said + "."
    return f"{said}: {numbers.significant(wait_s / period_s)} of a step, by which the samples age if groups stay whole."


def _least_end(tails: pl.DataFrame, enough: pl.Series) -> str:
    return numbers.significant(float(tails.filter(enough)["tail_to"][0]))


def _length(mean_tokens: float) -> str:
    return f"{numbers.significant(mean_tokens)} tokens"
