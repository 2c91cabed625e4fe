"""Metrics that the framework of an imported run reports itself, by the names in the framework's table."""

from collections.abc import Mapping, Sequence

import polars as pl

from rlscope.analysis.result import ReportedMetric
from rlscope.trace.imported import Imported, ReportedKind


def reported_metrics(
    answers: Mapping[str, pl.DataFrame], imported: Imported | None, kind: ReportedKind
) -> tuple[ReportedMetric, ...]:
    """Return the metrics of a kind in the order of the table. If several workers report one, the last by id counts.

    Args:
        answers: Answers with that of reported_values, if the run is imported.
        imported: Origin of an imported run, with the names of its framework's metrics.
        kind: What the metrics hold.
    """
    names = imported.metrics.get(kind, ()) if imported else ()
    found = {row["name"]: row for row in answers["reported_values"].iter_rows(named=True)} if names else {}
    return tuple(
        ReportedMetric(name, *(found[name][key] for key in ("rows", "mean", "max"))) for name in names if name in found
    )


def trains_on_own_samples(staleness: Sequence[ReportedMetric]) -> bool | None:
    """Return whether the framework reports a staleness of 0 for every step; None if it reports none."""
    return all(each.max == 0.0 for each in staleness) if staleness else None
