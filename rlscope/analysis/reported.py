"""Metrics that the framework of an imported run reports itself, by the names in the framework's table."""

from collections.abc import Sequence

import polars as pl

from rlscope.analysis.result import ReportedMetric


def reported_metrics(values: pl.DataFrame, names: Sequence[str]) -> tuple[ReportedMetric, ...]:
    """Return the metrics with these names, in their order. If several workers report one, the last by id counts.

    Args:
        values: Answer of reported_values.
        names: Names of the framework's metrics.
    """
    found = {row["name"]: row for row in values.iter_rows(named=True)}
    return tuple(
        ReportedMetric(name, *(found[name][key] for key in ("rows", "mean", "max"))) for name in names if name in found
    )


def trains_on_own_samples(staleness: Sequence[ReportedMetric]) -> bool | None:
    """Return whether the framework reports a staleness of 0 for every step; None if it reports none."""
    return all(each.max == 0.0 for each in staleness) if staleness else None
