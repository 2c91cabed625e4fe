"""Response lengths: all of them, trained against dropped ones, and the longest sample of each group."""

from collections.abc import Mapping, Sequence
from typing import Final

import polars as pl

from rlscope import format as fmt
from rlscope.analysis.result import AnalysisResult, RunFacts
from rlscope.input_file import is_integer
from rlscope.reports.blocks import Block, Charts, Fact, Facts, Fold, Instead, Paragraph
from rlscope.reports.charts import lengths, sampling
from rlscope.reports.charts.lengths import IS_TRAINED
from rlscope.reports.figure import Figure, drawn, drawn_frame

_ENDINGS: Final = ("finished_samples", "capped_samples", "censored_samples")
# Means that differ by less count as equal.
BIAS_RATIO: Final = 0.05
# A cap farther out would squeeze the lengths into a corner of the chart.
_CAP_IN_SIGHT: Final = 1.25


def capped_lengths(answers: Mapping[str, pl.DataFrame], run: RunFacts) -> pl.DataFrame | None:
    """Add the run's cap to response_lengths as `max_output_tokens`; null without one, or far above all lengths."""
    frame = answers.get("response_lengths")
    if frame is None or frame.is_empty():
        return frame
    cap = stated_cap_tokens(run)
    longest = int(frame["length_to_tokens"].max() or 0)  # pyright: ignore[reportArgumentType]
    in_sight = cap if cap is not None and cap <= _CAP_IN_SIGHT * longest else None
    return frame.with_columns(max_output_tokens=pl.lit(in_sight, dtype=pl.Int64))


def stated_cap_tokens(run: RunFacts) -> int | None:
    """max_output_tokens of the run's config, in tokens; None if it has none."""
    cap = run.settings.get("max_output_tokens")
    return cap if isinstance(cap, int) and is_integer(cap) else None


def mirrored_frame(answers: Mapping[str, pl.DataFrame]) -> pl.DataFrame | None:
    """delivered_lengths as shares of the trained or the untrained, with the mean of each side; None if all trained."""
    counts, outcomes = answers.get("delivered_lengths"), answers.get("delivery_outcomes")
    if counts is None or outcomes is None or counts.filter(pl.col("outcome") != IS_TRAINED).is_empty():
        return None
    is_trained = (pl.col("outcome") == IS_TRAINED).alias("is_trained")
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
    """Whether dropping changes the mean length of what is trained on, or why that is unknown."""
    outcomes = answers.get("delivery_outcomes")
    if outcomes is None or outcomes.is_empty():
        return "No delivery was recorded, so trained and dropped samples cannot be compared."
    if mirrored is None:
        return "No sample that left the queue was dropped, so there is no length bias."
    sides = mirrored.group_by(pl.col("outcome") == IS_TRAINED).agg(pl.col("side_mean_tokens").first()).rows()
    means: dict[bool, float] = dict(sides)
    if True not in means:
        return "Nothing was trained on, so there is nothing to compare."
    trained, rest = means[True], means[False]
    means_text = f"Mean length: {_length(trained)} trained on, {_length(rest)} not trained on"
    if not trained or abs(rest - trained) < BIAS_RATIO * trained:
        return f"{means_text}. Dropping does not bias lengths."
    differ, biased = ("longer", "shorter") if rest > trained else ("shorter", "longer")
    apart = fmt.percent(abs(rest / trained - 1))
    return f"{means_text} ({apart} {differ}). Dropping biases training towards {biased} responses."


def tails_sentence(answers: Mapping[str, pl.DataFrame]) -> str:
    """Compare the longest sample of a group with the mean, and say how long the others wait for the last."""
    tails, steps = answers.get("group_tail_counts"), answers.get("training_steps")
    if tails is None or tails.is_empty():
        return ""
    groups = int(tails["groups"].sum())
    up_to = tails["groups"].cum_sum()
    half, most = (_least_end(tails, up_to * 100 >= groups * percent) for percent in (50, 95))
    wait_s = float((tails["last_wait_mean_s"] * tails["groups"]).sum()) / groups
    ratio = f"of {fmt.count(groups)} groups, the longest sample is less than"
    spread = f"In 95% {ratio} {most} times the mean."
    if half != most:
        spread = f"In half {ratio} {half} times the mean; in 95%, less than {most} times."
    text = f"{spread} The last sample of a group ends {fmt.duration(wait_s)} after the median one on average"
    period_s = None if steps is None or steps.is_empty() else steps["period_s"].mean()
    if not isinstance(period_s, int | float) or not period_s:
        return text + "."
    return f"{text}: {fmt.significant(wait_s / period_s)} steps of added wait if groups are kept complete."


def _least_end(tails: pl.DataFrame, enough: pl.Series) -> str:
    return fmt.significant(float(tails.filter(enough)["tail_to"][0]))


def outcomes_reading(answers: Mapping[str, pl.DataFrame]) -> str:
    """The caption of the outcomes: which share of the tokens was thrown away."""
    outcomes = answers.get("delivery_outcomes")
    total = 0 if outcomes is None or outcomes.is_empty() else int(outcomes["tokens"].sum())
    if outcomes is None or not total:
        return "Tokens by the delivery outcome of their sample."
    lost = total - int(outcomes.filter(pl.col("outcome") == IS_TRAINED)["tokens"].sum())
    share = "All tokens that left the queue were trained on."
    if lost:
        share = f"Hatched: {fmt.percent(lost / total)} of the tokens that left the queue were not trained on."
    return f"Tokens by the delivery outcome of their sample. {share} Healthy: nearly all trained."


def all_trained(answers: Mapping[str, pl.DataFrame]) -> str:
    """Return a sentence if every delivered token was trained on, so that a chart would have one bar; else empty."""
    outcomes = answers.get("delivery_outcomes")
    if outcomes is None or outcomes["outcome"].to_list() != [IS_TRAINED]:
        return ""
    return f"All {fmt.tokens(int(outcomes['tokens'][0]))} that left the queue were trained on."


def _length(mean_tokens: float) -> str:
    return f"{fmt.significant(mean_tokens)} tokens"


def lengths_section(analysis: AnalysisResult) -> Sequence[Block]:
    """Return the blocks of the section."""
    answers, run = analysis.answers, analysis.run
    mirrored, facts, trained = mirrored_frame(answers), _facts(analysis), all_trained(answers)
    lengths_of = drawn_frame(_LENGTHS.saying(_reading(analysis)), capped_lengths(answers, run), run)
    outcomes = drawn(_OUTCOMES.saying(outcomes_reading(answers)), analysis)
    tails = drawn(_TAILS.saying(tails_sentence(answers)), analysis)
    dropped = [] if mirrored is None else [drawn_frame(_MIRRORED, mirrored, run)]
    more = [
        *([Facts(facts)] if facts else []),
        Charts([tails, *dropped]),
        Paragraph(bias_sentence(mirrored, answers), "lead"),
    ]
    return [
        *([Instead(trained, [outcomes])] if trained else []),
        Charts([lengths_of] if trained else [lengths_of, outcomes]),
        Fold("lengths-more", "Longest samples, dropped samples and the balance of tokens", more),
    ]


def _facts(analysis: AnalysisResult) -> list[Fact]:
    frame = analysis.answers.get("token_balance")
    if frame is None or frame.is_empty():
        return []
    return [
        Fact(name.removesuffix("_tokens").replace("_", " ").capitalize(), fmt.tokens(value))
        for name, value in frame.row(0, named=True).items()
    ]


def _reading(analysis: AnalysisResult) -> str:
    """The caption of the lengths, with the cap."""
    cap = stated_cap_tokens(analysis.run)
    text = "The run has no cap." if cap is None else f"The cap is {fmt.count(cap)} tokens{_capped(analysis.answers)}."
    censored = _CENSORED if _has_censored(analysis.answers) else ""
    return f"Capped samples hit the length limit.{censored} Healthy: few capped samples. {text}"


def _has_censored(answers: Mapping[str, pl.DataFrame]) -> bool:
    rows = answers.get("response_lengths")
    return rows is not None and bool(rows["censored_samples"].sum())


def _capped(answers: Mapping[str, pl.DataFrame]) -> str:
    """The share of samples that hit the cap, as the end of a sentence; empty without samples."""
    lengths_of = answers.get("response_lengths")
    samples = 0 if lengths_of is None else int(lengths_of.select(pl.sum_horizontal(_ENDINGS).sum()).item())
    if lengths_of is None or not samples:
        return ""
    return f": {fmt.percent(int(lengths_of['capped_samples'].sum()) / samples)} of the samples hit it"


_CENSORED: Final = " Censored samples were aborted or still running, so their full length is unknown."
_LENGTHS: Final = Figure(
    "Response lengths",
    "",
    "response_lengths", "length_from_tokens", lengths.response_lengths, "no sample was recorded",
    False, ("response_lengths",),
)  # fmt: skip
_OUTCOMES: Final = Figure(
    "Tokens by outcome",
    "",
    "delivery_outcomes", "tokens", sampling.delivery_outcomes, "no delivery was recorded",
)  # fmt: skip
_MIRRORED: Final = Figure(
    "Lengths of trained and dropped samples",
    "Upwards: samples trained on. Downwards: samples dropped, filtered or abandoned. Each side adds up to 100%. "
    "Healthy: a mirror image, that is, dropping does not depend on length.",
    "mirrored_lengths", "samples", lengths.mirrored_lengths, "no sample of known length left the queue", False,
    ("delivered_lengths", "delivery_outcomes"),
)  # fmt: skip
_TAILS: Final = Figure(
    "Longest sample of each group",
    "Groups by the ratio of their longest sample to their mean length. Healthy: most groups near 1.",
    "group_tail_counts", "groups", lengths.group_tails, "no group of two or more samples was recorded",
)  # fmt: skip
