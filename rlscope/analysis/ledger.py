"""The ledger: GPU-seconds by state, adding up to 100%.

`queries/ledger/ledger.sql` computes the states. This module adds them up, rejects a ledger that does not close, and
compares GPU readings with the states that hooks recorded. It draws no conclusions.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

import polars as pl

from rlscope.analysis.result import Ledger, LedgerState, UnrecordedTime

if TYPE_CHECKING:
    from rlscope.model.forecast.gap import BatchEfficiency

TRAINER_ROLES: Final = ("trainer", "colocated")
SAMPLER_ROLES: Final = ("sampler", "colocated")
"""Roles whose GPUs train, and roles whose GPUs sample."""
AUXILIARY_ROLE: Final = "auxiliary"
"""Role of workers whose model is not trained. The ledger has their GPU time; the verdict leaves it out."""
_NUMBER: Final = r"[-_.]?[0-9]+(\.[0-9a-f]+)?$"
"""Number of a worker at the end of its name, perhaps with the suffix that tells workers of several nodes apart."""
ENGINE_STATES: Final = ("decoding", "prefilling", "mixed_passes", "other_passes", "between_passes")
"""States that are parts of an engine row. GPU readings cannot tell them apart."""
GENERATING: Final = (*ENGINE_STATES, "generating")
"""States in which a sampler generates tokens."""
BUSY_STATES: Final = (*ENGINE_STATES[:-1], "train", "logprobs", "generating", "eval", "reward")
"""States in which the GPU works, according to the hooks."""

UNRECORDED_RATIO: Final = 0.05
"""Share of the run. A worker that is missing for less just started or ended at a slightly different time."""
IDLE_STATES: Final = ("waiting_for_samples", "waiting_for_staleness_cap", "waiting", "no_requests")
"""States in which a worker is idle because it waits for something."""


class StateKey(NamedTuple):
    """A state of the ledger."""

    role: str
    state: str
    reason: str | None

    @property
    def is_capped(self) -> bool:
        """Whether the staleness cap blocks its GPUs."""
        return self.state == "waiting_for_staleness_cap" or self.reason == "staleness_cap"


def close_ledger(rows: pl.DataFrame, extents: pl.DataFrame, agreement: pl.DataFrame) -> Ledger:
    """Add up the answer of `ledger` (worker, bucket, state) over workers and buckets.

    Args:
        rows: Answer of `ledger`.
        extents: Answer of worker_extents.
        agreement: Answer of gpu_agreement.

    Raises:
        RuntimeError: The states do not sum to the workers' GPU-nanoseconds, which is a bug of rlscope.
    """
    owners = extents.filter(pl.col("gpu_count") > 0)
    total_gpu_ns = _sum(owners, (pl.col("end_ns") - pl.col("start_ns")) * pl.col("gpu_count"))
    if _sum(rows, pl.col("state_ns") * pl.col("gpu_count")) != total_gpu_ns:
        raise RuntimeError(f"the ledger does not close on {total_gpu_ns} GPU-nanoseconds")
    states = _states(rows, _idle_ratios(agreement, extents))
    return Ledger(total_gpu_ns=total_gpu_ns, states=states, unrecorded=_unrecorded(owners))


def _unrecorded(owners: pl.DataFrame) -> tuple[UnrecordedTime, ...]:
    """Return the workers with GPUs that were not recorded for a noticeable part of the run."""
    if owners.is_empty():
        return ()
    first, last = pl.col("start_ns").min(), pl.col("end_ns").max()
    missing = owners.select(
        "worker_id",
        before_s=(pl.col("start_ns") - first) / 1e9,
        after_s=(last - pl.col("end_ns")) / 1e9,
        gpu_s=(pl.col("start_ns") - first + last - pl.col("end_ns")) * pl.col("gpu_count") / 1e9,
        run_s=(last - first) / 1e9,
    ).filter(pl.col("run_s") > 0, pl.col("before_s") + pl.col("after_s") >= UNRECORDED_RATIO * pl.col("run_s"))
    ordered = missing.sort(["gpu_s", "worker_id"], descending=[True, False]).drop("run_s")
    return tuple(UnrecordedTime(**row) for row in ordered.iter_rows(named=True))


def ledger_timeline(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the ledger over time: role, state, reason, worker_id, bucket_start_ns, gpu_s.

    worker_id is that of an auxiliary worker, and NULL for other roles.
    """
    key = ("role", "state", "reason", "worker_id", "bucket_start_ns")
    return (
        rows.with_columns(worker_id=pl.when(pl.col("role") == AUXILIARY_ROLE).then("worker_id"))
        .group_by(key)
        .agg((pl.col("state_ns") * pl.col("gpu_count")).sum().alias("gpu_ns"))
        .select(*key, (pl.col("gpu_ns") / 1e9).alias("gpu_s"))
        .sort("role", "bucket_start_ns", "state", "reason", "worker_id")
    )


def auxiliary_kinds(timeline: pl.DataFrame) -> dict[str, pl.DataFrame]:
    """Return the rows of each kind of auxiliary workers in a ledger over time, by the name of the kind.

    Workers whose names differ only in a number at the end are of one kind: judge-0 and judge-1, but not ranker-0.
    """
    kinds = timeline.filter(role=AUXILIARY_ROLE).with_columns(kind=pl.col("worker_id").str.replace(_NUMBER, ""))
    return {str(kind): rows for (kind,), rows in kinds.group_by("kind", maintain_order=True)}


def split_decoding(
    ledger: Ledger, passes: pl.DataFrame, extents: pl.DataFrame, efficiency: "BatchEfficiency | None"
) -> Ledger:
    """Return the ledger with decoding split into the time that efficient batches need and the time they would save.

    The two parts add up to the state, because the second is the remainder of the first.

    Args:
        ledger: The ledger to split.
        passes: Answer of pass_latency.
        extents: Answer of worker_extents.
        efficiency: Batch efficiency of the engines. None leaves the ledger as it is.
    """
    if efficiency is None:
        return ledger
    owned = passes.join(extents.select("worker_id", "role", "gpu_count"), on="worker_id").with_columns(
        gpu_s=pl.col("passes") * pl.col("pass_mean_s") * pl.col("gpu_count")
    )
    return replace(ledger, states=tuple(_divided(state, owned, efficiency) for state in ledger.states))


def _divided(state: LedgerState, passes: pl.DataFrame, efficiency: "BatchEfficiency") -> LedgerState:
    own = passes.filter(pl.col("role") == state.role, pl.col("gpu_s") > 0)
    if state.state != "decoding" or own.is_empty():
        return state
    efficient_ns = round(efficiency.time_ratio(own["running"], own["gpu_s"]) * state.gpu_ns)
    return replace(state, underfilled_gpu_ns=state.gpu_ns - efficient_ns)


def _states(rows: pl.DataFrame, idle_ratios: Mapping[tuple[str, str], float]) -> tuple[LedgerState, ...]:
    totals = (
        rows.group_by("role", "state", "reason")
        .agg((pl.col("state_ns") * pl.col("gpu_count")).sum().alias("gpu_ns"))
        .with_columns(pl.col("gpu_ns").sum().over("role").alias("role_gpu_ns"))
        .sort("role", -pl.col("gpu_ns"), "state", "reason")
    )
    return tuple(
        LedgerState(
            role=row["role"],
            state=row["state"],
            reason=row["reason"],
            gpu_ns=row["gpu_ns"],
            share_ratio=row["gpu_ns"] / row["role_gpu_ns"],
            gpu_idle_ratio=idle_ratios.get((row["role"], row["state"])) if row["state"] in BUSY_STATES else None,
        )
        for row in totals.iter_rows(named=True)
    )


def _idle_ratios(agreement: pl.DataFrame, extents: pl.DataFrame) -> dict[tuple[str, str], float]:
    """Return the share of each role's state in which the GPU ran no kernel, over readings entirely in the state."""
    read = agreement.filter(pl.col("busy_ratio").is_not_null()).join(
        extents.select("worker_id", "role"), on="worker_id"
    )
    means = read.group_by("role", "state").agg(
        ((1 - pl.col("busy_ratio")) * pl.col("read_s")).sum().alias("idle_s"), pl.col("read_s").sum()
    )
    ratios: dict[tuple[str, str], float] = {}
    for row in means.iter_rows(named=True):
        for state in ENGINE_STATES if row["state"] == "engine_rows" else (row["state"],):
            ratios[row["role"], state] = row["idle_s"] / row["read_s"]
    return ratios


def _sum(frame: pl.DataFrame, expression: pl.Expr) -> int:
    return int(frame.select(expression.cast(pl.Int64).sum()).item() or 0)
