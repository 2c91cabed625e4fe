"""Facts on what a run records of the data that each answer needs. The wording is elsewhere.

`rlscope doctor` turns them into the line of code, the flag or the file that would add the missing data.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Final

import polars as pl

from rlscope.analysis.interval import Interval
from rlscope.trace.imported import Imported
from rlscope.trace.query import ask, make_grid
from rlscope.trace.store import OpenRun

NOTICED_RATIO: Final = 0.05
"""Share of a worker's time in no recorded state that is worth a note. Less is the code between two hooks."""
_LOSSES_NAMED: Final = 3
_SETTINGS: Final = (
    "samples_per_step",
    "group_size",
    "max_staleness",
    "queue_capacity_samples",
    "max_in_flight_samples",
    "max_running",
    "max_output_tokens",
)


@dataclass(frozen=True, slots=True)
class WorkerTime:
    """States that a worker recorded, and the share of its time in no recorded state."""

    worker_id: str
    role: str
    unattributed_ratio: float
    """Share of its time from start to end, 0 to 1."""
    states: frozenset[str]
    """States that it was in."""
    reasons: frozenset[str]
    """Reasons that it waited for."""


@dataclass(frozen=True, slots=True)
class Checkup:
    """Data that a run records."""

    rows: Mapping[str, int]
    """Rows of each table; 0 for a table without files."""
    workers: tuple[WorkerTime, ...]
    roles: frozenset[str]
    roles_without_gpus: tuple[str, ...]
    """Roles, except the controller, whose workers own no GPU."""
    publications: int
    """Published versions."""
    applications: int
    """Versions that samplers reported as applied."""
    known_versions: int
    """Samples whose versions come from an engine or its segments, not only from the time of admission."""
    polled_engines: tuple[str, ...]
    """Engines recorded by polling or from log lines."""
    settings: tuple[str, ...]
    """Settings that the model uses and that the config in run.json has, or that the engines state."""
    missing_settings: tuple[str, ...]
    imported: Imported | None
    lost: Mapping[str, str] = field(default_factory=dict[str, str])
    """Data that was recorded but cannot be read (damaged files, missing rows), by table."""


def examine(run: OpenRun) -> Checkup:
    """Return the data that an open run records."""
    extents = ask(run, "worker_extents")
    stated = {"max_running"} if ask(run, "worker_devices")["max_running"].count() else set[str]()
    present = tuple(name for name in _SETTINGS if name in stated or getattr(run.config, name) is not None)
    owned = extents.group_by("role").agg(pl.col("gpu_count").sum())
    updates = _counts(run, "SELECT phase, count(DISTINCT version) FROM weight_updates GROUP BY phase")
    sources = _counts(run, "SELECT version_source, count(*) FROM samples GROUP BY version_source")
    polled = run.connection.sql(
        "SELECT DISTINCT worker_id FROM engine_steps WHERE source IN ('sampled', 'log') ORDER BY worker_id"
    ).fetchall()
    return Checkup(
        rows=run.row_counts,
        workers=_worker_times(run, extents),
        roles=frozenset(extents["role"]),
        roles_without_gpus=tuple(sorted(role for role, gpus in owned.iter_rows() if not gpus and role != "controller")),
        publications=updates.get("publish", 0),
        applications=updates.get("apply", 0),
        known_versions=sum(count for source, count in sources.items() if source != "admission"),
        polled_engines=tuple(str(row[0]) for row in polled),
        settings=present,
        missing_settings=tuple(name for name in _SETTINGS if name not in present),
        imported=run.imported,
        lost=_lost(run),
    )


def _lost(run: OpenRun) -> dict[str, str]:
    found: dict[str, list[str]] = {}
    for file in run.skipped_files:
        found.setdefault(file.path.split("/")[0], []).append(f"{file.path} was skipped: {file.why}")
    for gap in run.completeness.gaps:
        if gap.kind == "missing":
            found.setdefault(gap.table, []).append(gap.detail)
    return {table: "; ".join(sentences[:_LOSSES_NAMED]) for table, sentences in found.items()}


def _worker_times(run: OpenRun, extents: pl.DataFrame) -> tuple[WorkerTime, ...]:
    """Return the workers with GPUs, those with the most time in no recorded state first."""
    whole = Interval(min(extents["start_ns"], default=0), max(extents["end_ns"], default=0))
    states = ask(run, "worker_states", asdict(make_grid(run, *whole)))
    found: list[WorkerTime] = []
    for (worker_id, role), own in states.filter(pl.col("gpu_count") > 0).group_by("worker_id", "role"):
        total_ns = int(own["state_ns"].sum())
        lost_ns = int(own.filter(pl.col("state") == "unattributed")["state_ns"].sum())
        if total_ns:
            kept = own.filter(pl.col("state") != "unattributed")
            reasons = frozenset(str(reason) for reason in kept["reason"].drop_nulls())
            ratio = lost_ns / total_ns
            found.append(WorkerTime(str(worker_id), str(role), ratio, frozenset(kept["state"]), reasons))
    return tuple(sorted(found, key=lambda each: (-each.unattributed_ratio, each.worker_id)))


def _counts(run: OpenRun, sql: str) -> dict[str, int]:
    return {str(name): int(count) for name, count in run.connection.sql(sql).fetchall()}
