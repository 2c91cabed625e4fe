"""The metrics that an alert rule can use: unit, meaning, evidence, and the query that computes each.

Over the whole run each metric equals the number in the report. docs/metrics.md is generated from this list.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final, Literal

import polars as pl

from rlscope.alerts.buckets import Family
from rlscope.alerts.series import (
    Series,
    Statistic,
    Timeline,
    Whole,
    constant,
    highest,
    histogram,
    longest_stretch,
    overdue,
    rate,
    ratio,
    silence,
)
from rlscope.analysis.ledger import IDLE_STATES, SAMPLER_ROLES, TRAINER_ROLES
from rlscope.analysis.run_facts import steady_window

Unit = Literal["versions", "ratio", "samples", "requests", "tokens_per_s", "s", "rows", "periods", "reward"]
EvidenceUnit = Literal["tokens", "gpu_s", "s", "steps", "updates", "intervals", "workers", "rows"]
STEADY: Final = "throughput.steady_tokens_per_s"
"""The rate that every report has in its headline."""
_MOVING_WEIGHTS: Final = ("publishing_weights", "transferring_weights", "applying_weights")
_NS: Final = 1e-9


@dataclass(frozen=True, slots=True)
class AlertMetric:
    """One metric."""

    name: str
    unit: Unit
    meaning: str
    question: str
    """The query in queries/ that computes it."""
    family: Family | None
    """The rows it is computed from; None if it needs none."""
    evidence: EvidenceUnit
    min_evidence: int
    """With less evidence in the window the metric has no value."""
    series: Callable[[Timeline], Series]
    is_live: bool = True
    """Whether it is known while the run is in progress."""
    looks_back: bool = True
    """Whether the window changes its value. If not, the value is that of the tick."""


def _states(timeline: Timeline, where: pl.Expr) -> Whole:
    return timeline.sums(timeline.rows("states", where), "gpu_ns")


def _share_of_states(lost: pl.Expr, of: pl.Expr, timeline: Timeline) -> Series:
    all_ns = _states(timeline, of)
    return ratio(_states(timeline, lost & of), all_ns, all_ns, _NS)


def _gpu_share(name: str, meaning: str, lost: pl.Expr, roles: tuple[str, ...] | None = None) -> AlertMetric:
    """Return the metric of the share of the roles' GPU time in the states `lost`."""
    of = pl.lit(True) if roles is None else pl.col("role").is_in(roles)
    return AlertMetric(name, "ratio", meaning, "ledger", "states", "gpu_s", 1, partial(_share_of_states, lost, of))


_IDLE: Final = pl.col("state").is_in(IDLE_STATES)
_WEIGHTS: Final = pl.col("state").is_in(_MOVING_WEIGHTS) | (
    (pl.col("state") == "waiting") & (pl.col("reason") == "weights").fill_null(False)
)
_UNKNOWN: Final = pl.col("state") == "unattributed"


def _staleness(statistic: Statistic, timeline: Timeline) -> Series:
    return histogram(*timeline.by_level(timeline.rows("tokens"), "staleness", "tokens"), statistic)


def _token_staleness(statistic: Statistic, meaning: str) -> AlertMetric:
    name, series = f"staleness.tokens.{statistic}", partial(_staleness, statistic)
    return AlertMetric(name, "versions", meaning, "token_staleness", "tokens", "tokens", 1000, series)


def _token_share(family: Family, condition: pl.Expr, timeline: Timeline) -> Series:
    """Return the share of the family's tokens in rows of the condition."""
    tokens = timeline.sums(timeline.rows(family), "tokens")
    return ratio(timeline.sums(timeline.rows(family, condition), "tokens"), tokens, tokens)


def _over_cap(timeline: Timeline) -> Series:
    cap = timeline.max_staleness
    return constant(None) if cap is None else _token_share("tokens", pl.col("staleness") > cap, timeline)


def _queues(lower: str, timeline: Timeline) -> Series:
    """Return the mean depth over the column `lower`, of the queue where it is highest."""
    capacity_ns = pl.col("capacity_samples") * pl.col("held_ns")
    rows = timeline.rows("queues").with_columns(capacity_ns=capacity_ns)
    parts = [
        ratio(timeline.sums(own, "depth_ns"), timeline.sums(own, lower), timeline.sums(own, "held_ns"), _NS)
        for _, own in rows.group_by("queue", maintain_order=True)
    ]
    return highest(parts)


def _engines(column: str, timeline: Timeline) -> Series:
    timed = timeline.rows("engines", pl.col("is_timed"))
    row_ns = timeline.sums(timed, "row_ns")
    return ratio(timeline.sums(timed, column), row_ns, row_ns, _NS)


def _kv_used(timeline: Timeline) -> Series:
    capacity = timeline.kv_capacity_tokens
    if not capacity:
        return constant(None)
    has_capacity = pl.col("worker_id").is_in([*capacity])
    known = timeline.rows("engines", pl.col("is_timed"), pl.col("kv_row_ns").is_not_null(), has_capacity)
    tokens = pl.col("worker_id").replace_strict(dict(capacity), return_dtype=pl.Float64)
    known = known.with_columns((tokens * pl.col("kv_row_ns")).alias("capacity_token_ns"))
    return ratio(
        timeline.exact_sums(known, "kv_token_ns"),
        timeline.exact_sums(known, "capacity_token_ns"),
        timeline.sums(known, "kv_row_ns"),
        _NS,
    )


def _trained_tokens(timeline: Timeline) -> Series:
    rows = timeline.rows("steps")
    return rate(timeline, timeline.sums(rows, "response_tokens"), timeline.counts(rows))


def _mean(family: Family, column: str, timeline: Timeline) -> Series:
    known = timeline.rows(family, pl.col(column).is_not_null())
    counts = timeline.counts(known)
    return ratio(timeline.exact_sums(known, column), counts.astype(float).tolist(), counts)


def _overdue(family: Family, event: str, column: str, timeline: Timeline) -> Series:
    """Return the delay of an event. One that several workers reach counts once, at the first of them."""
    firsts_ns = timeline.frames[family].group_by(event).agg(pl.col(column).min())[column].unique().sort()
    return overdue(timeline, firsts_ns.to_numpy())


def _longest_idle(timeline: Timeline) -> Series:
    """Return the longest idle intervals. Idle times that meet at the edge of a bucket are one interval."""
    pieces = timeline.rows("idle").sort("worker_id", "start_ns")
    goes_on = (pl.col("worker_id") == pl.col("worker_id").shift()) & (pl.col("start_ns") == pl.col("end_ns").shift())
    stretches = (
        pieces.group_by((~goes_on.fill_null(value=False)).cum_sum().alias("stretch"))
        .agg(pl.col("worker_id", "start_ns").first(), pl.col("end_ns").last())
        .sort("start_ns", "end_ns", "worker_id")
    )
    starts_ns, ends_ns = stretches["start_ns"].to_numpy(), stretches["end_ns"].to_numpy()
    return longest_stretch(timeline, starts_ns, ends_ns, stretches["worker_id"].to_list())


def _dropped_ratio(timeline: Timeline) -> Series:
    rows = timeline.dropped_rows + timeline.stored_rows
    return constant(timeline.dropped_rows / rows if rows else None, rows)


def _steady(timeline: Timeline) -> Series:
    """Return tokens over seconds of the steady state, as in the report."""
    steps = timeline.rows("steps")
    window = steady_window(steps)
    if window is None:
        return constant(None)
    inside = steps.filter(window.is_inside)
    rate = window.per_s(int(inside["response_tokens"].sum()))
    return constant(rate or None, 0 if rate is None else len(inside))


METRICS: Final[tuple[AlertMetric, ...]] = (
    _token_staleness("mean", "mean staleness of the trained response tokens"),
    _token_staleness("p50", "median staleness of the trained response tokens"),
    _token_staleness("p95", "95th percentile of the staleness of the trained response tokens"),
    _token_staleness("p99", "99th percentile of the staleness of the trained response tokens"),
    _token_staleness("max", "highest staleness of any trained response token"),
    AlertMetric("staleness.over_cap_ratio", "ratio", "share of the trained tokens beyond the run's max_staleness",
                "token_staleness", "tokens", "tokens", 1000, _over_cap),
    _gpu_share("idle.trainer_ratio", "share of the trainers' GPU-seconds spent waiting for samples or anything else",
               _IDLE, TRAINER_ROLES),
    _gpu_share("idle.sampler_ratio", "share of the samplers' GPU-seconds spent without requests or otherwise waiting",
               _IDLE, SAMPLER_ROLES),
    _gpu_share("weight_update.gpu_ratio", "share of all GPU-seconds spent on moving weights or waiting for them",
               _WEIGHTS),
    _gpu_share("unattributed_ratio", "share of all GPU-seconds that no hook accounts for", _UNKNOWN),
    AlertMetric("idle.longest_s", "s", "longest unbroken time without recorded work on the GPUs of one worker",
                "idle_buckets", "idle", "workers", 1, _longest_idle),
    AlertMetric("dropped_stale_ratio", "ratio", "share of the tokens leaving the queue that were dropped as stale",
                "delivery_outcomes", "outcomes", "tokens", 1000,
                partial(_token_share, "outcomes", pl.col("outcome") == "dropped_stale")),
    AlertMetric("queue.depth", "samples", "mean depth of the deepest queue",
                "queue_depth", "queues", "s", 1, partial(_queues, "held_ns")),
    AlertMetric("queue.used_ratio", "ratio", "mean depth over capacity of the fullest queue",
                "queue_depth", "queues", "s", 1, partial(_queues, "capacity_ns")),
    AlertMetric("kv.used_ratio", "ratio", "tokens resident in the KV caches over their capacity, weighted by time",
                "kv_use", "engines", "s", 1, _kv_used),
    AlertMetric("running.per_engine", "requests", "requests running in an engine, weighted by time",
                "batch_size", "engines", "s", 1, partial(_engines, "running_ns")),
    AlertMetric("waiting.requests", "requests", "requests waiting inside an engine, weighted by time",
                "waiting_requests", "engines", "s", 1, partial(_engines, "waiting_ns")),
    AlertMetric("throughput.trained_tokens_per_s", "tokens_per_s", "response tokens of ended steps, per second",
                "training_steps", "steps", "steps", 3, _trained_tokens),
    AlertMetric(STEADY, "tokens_per_s", "response tokens trained per second over the steady state, as in the report",
                "training_steps", "steps", "steps", 3, _steady, is_live=False, looks_back=False),
    AlertMetric("step.time_s", "s", "mean time from the end of one optimizer step to the end of the next",
                "training_steps", "steps", "steps", 3, partial(_mean, "steps", "step_s")),
    AlertMetric("reward.mean", "reward", "mean over the optimizer steps of the reward of their samples",
                "training_steps", "steps", "steps", 3, partial(_mean, "steps", "reward_mean")),
    AlertMetric("step.overdue_periods", "periods", "time since the last step ended, in units of the median step time",
                "training_steps", "steps", "intervals", 5,
                partial(_overdue, "steps", "step", "end_ns"), looks_back=False),
    AlertMetric("weight_update.duration_s", "s", "mean time from the start of a publication until an engine applied it",
                "weight_update_latency", "updates", "updates", 1,
                partial(_mean, "updates", "publish_to_applied_s")),
    AlertMetric("weight_update.overdue_periods", "periods",
                "time since new weights last reached an engine, in units of the median interval between updates",
                "weight_update_latency", "updates", "intervals", 5,
                partial(_overdue, "updates", "version", "applied_ns"), looks_back=False),
    AlertMetric("worker.silent_s", "s", "time since the last flush or row of the worker silent for longest",
                "worker_extents", None, "workers", 1, silence, looks_back=False),
    AlertMetric("rows.dropped_ratio", "ratio", "share of all rows that capture dropped",
                "worker_extents", None, "rows", 1, _dropped_ratio, looks_back=False),
    AlertMetric("rows.missing", "rows", "rows that the workers counted and that are missing, damaged or stored twice",
                "worker_extents", None, "rows", 0,
                lambda timeline: constant(timeline.missing_rows, timeline.stored_rows), is_live=False,
                looks_back=False),
)  # fmt: skip
"""Every metric, in the order in which they are listed."""
BY_NAME: Final = {metric.name: metric for metric in METRICS}
