"""Staleness of the trained tokens: sums over the answers of `token_staleness` and related queries."""

from collections.abc import Mapping
from itertools import accumulate
from typing import Final

import numpy as np
import polars as pl

from rlscope.analysis.reported import reported_metrics
from rlscope.analysis.result import SampleStaleness, Staleness, TokenStaleness
from rlscope.trace.imported import Imported

_LEAST_AGES: Final = 3
"""Minimum number of ages for a curve of the effective sample size over age."""


def summarize_staleness(
    answers: Mapping[str, pl.DataFrame], max_staleness: int | None, imported: Imported | None = None
) -> Staleness:
    """Return the staleness of a run.

    Args:
        answers: Answers to token_staleness, staleness_histogram, oldest_staleness, version_sources and reported_values.
        max_staleness: The run's staleness cap.
        imported: Origin of an imported run, whose framework may report staleness itself.
    """
    histogram = tuple(answers["staleness_histogram"].select("staleness", "tokens").iter_rows())
    tokens = sum(count for _, count in histogram)
    parts = answers["token_staleness"].select(
        pl.col("in_flight_versions").sum().alias("in_flight"), pl.col("in_queue_versions").sum().alias("in_queue")
    )
    over = sum(count for age, count in histogram if max_staleness is not None and age > max_staleness)
    return Staleness(
        tokens=token_staleness(histogram),
        samples=_sample_staleness(answers["oldest_staleness"]),
        in_flight_mean=parts["in_flight"][0] / tokens if tokens else None,
        in_queue_mean=parts["in_queue"][0] / tokens if tokens else None,
        over_cap_tokens=over if max_staleness is not None and tokens else None,
        version_source_tokens=dict(answers["version_sources"].select("version_source", "tokens").iter_rows()),
        reported=reported_metrics(answers, imported, "staleness"),
    )


def effective_share_at(moments: pl.DataFrame, staleness: float) -> float | None:
    """Return the effective sample size per token, 0..1, at a mean staleness.

    It is interpolated between the ages of `moments`, the answer of version_moments. None if importance ratios were
    recorded at fewer than three ages, or at none this high.
    """
    known = moments.filter(pl.col("effective_share_ratio").is_not_null()).sort("staleness")
    if len(known) < _LEAST_AGES or staleness > float(known["staleness"][-1]):
        return None
    ages, shares = known["staleness"].to_numpy(), known["effective_share_ratio"].to_numpy()
    return float(np.interp(staleness, ages, shares))


def weighted_quantile(histogram: tuple[tuple[int, int], ...], percent: int) -> int:
    """Return the smallest value that `percent` % of the weight does not exceed.

    The histogram is (value, weight), sorted by value, and not empty.
    """
    up_to = list(accumulate(weight for _, weight in histogram))
    within = (value for (value, _), total in zip(histogram, up_to, strict=True) if total * 100 >= up_to[-1] * percent)
    return next(within)


def token_staleness(histogram: tuple[tuple[int, int], ...]) -> TokenStaleness | None:
    """Return the statistics of (staleness, tokens), sorted by staleness; None without tokens."""
    tokens = sum(count for _, count in histogram)
    if not tokens:
        return None
    return TokenStaleness(
        mean=sum(age * count for age, count in histogram) / tokens,
        p50=weighted_quantile(histogram, 50),
        p95=weighted_quantile(histogram, 95),
        p99=weighted_quantile(histogram, 99),
        max=histogram[-1][0],
        histogram=histogram,
    )


def _sample_staleness(by_step: pl.DataFrame) -> SampleStaleness | None:
    counts = by_step.group_by("staleness").agg(pl.col("samples").sum()).sort("staleness")
    ages = token_staleness(tuple(counts.select("staleness", "samples").iter_rows()))
    return None if ages is None else SampleStaleness(mean=ages.mean, p95=ages.p95, max=ages.max)


def effective_share_of_all(moments: pl.DataFrame) -> float | None:
    """Return the effective sample size per trained token, 0..1. None if no importance ratio was recorded.

    (sum w)^2 / (n sum w^2) (Kish 1965), from the mean and the variance of each staleness.
    """
    tokens, mean = pl.col("tokens"), pl.col("ratio_mean")
    sums = moments.select(
        n=tokens.sum(), w=(tokens * mean).sum(), w2=(tokens * (pl.col("ratio_variance") + mean**2)).sum()
    ).row(0, named=True)
    return sums["w"] ** 2 / (sums["n"] * sums["w2"]) if sums["w2"] else None
