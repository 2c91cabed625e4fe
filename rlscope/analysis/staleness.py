"""Staleness of the trained tokens: sums over the answers of `token_staleness` and related queries."""

from collections.abc import Mapping
from typing import Final

import numpy as np
import polars as pl

from rlscope.analysis.result import SampleStaleness, Staleness, TokenStaleness


def summarise_staleness(answers: Mapping[str, pl.DataFrame], max_staleness: int | None) -> Staleness:
    """The staleness of a run from token_staleness, staleness_histogram, oldest_staleness and version_sources."""
    histogram = tuple(answers["staleness_histogram"].select("staleness", "tokens").iter_rows())
    tokens = sum(count for _, count in histogram)
    parts = answers["token_staleness"].select(
        pl.col("in_flight_versions").sum().alias("in_flight"), pl.col("in_queue_versions").sum().alias("in_queue")
    )
    over = sum(count for age, count in histogram if max_staleness is not None and age > max_staleness)
    return Staleness(
        tokens=_token_staleness(histogram, tokens),
        samples=_sample_staleness(answers["oldest_staleness"]),
        in_flight_mean=parts["in_flight"][0] / tokens if tokens else None,
        in_queue_mean=parts["in_queue"][0] / tokens if tokens else None,
        over_cap_tokens=over if max_staleness is not None and tokens else None,
        version_source_tokens=dict(answers["version_sources"].select("version_source", "tokens").iter_rows()),
    )


_LEAST_AGES: Final = 3
"""Fewer tell no curve of the effective sample size over the age."""


def effective_share_at(moments: pl.DataFrame, staleness: float) -> float | None:
    """Effective sample size over the number of tokens, 0..1, of tokens of that mean staleness.

    moments: the answer of version_moments, interpolated between ages. None where importance ratios were recorded at
    fewer than three ages, or at none so high.
    """
    known = moments.filter(pl.col("effective_share_ratio").is_not_null()).sort("staleness")
    if len(known) < _LEAST_AGES or staleness > float(known["staleness"][-1]):
        return None
    ages, shares = known["staleness"].to_numpy(), known["effective_share_ratio"].to_numpy()
    return float(np.interp(staleness, ages, shares))


def weighted_quantile(histogram: tuple[tuple[int, int], ...], percent: int) -> int:
    """The smallest value that `percent` % of the weight does not exceed; histogram is (value, weight), by value.

    Raises ValueError for an empty histogram.
    """
    total = sum(weight for _, weight in histogram)
    up_to = 0
    for value, weight in histogram:
        up_to += weight
        if up_to * 100 >= total * percent:
            return value
    raise ValueError("the quantile of nothing")


def _token_staleness(histogram: tuple[tuple[int, int], ...], tokens: int) -> TokenStaleness | None:
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
    histogram = tuple(counts.select("staleness", "samples").iter_rows())
    if not histogram:
        return None
    return SampleStaleness(
        mean=sum(age * count for age, count in histogram) / sum(count for _, count in histogram),
        p95=weighted_quantile(histogram, 95),
        max=histogram[-1][0],
    )
