"""The result of one poll of a run in progress: its alerts, and the facts that a terminal shows. No formatting."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import polars as pl

from rlscope.alerts.buckets import Family
from rlscope.alerts.live.workers import LiveWorkers, LongestPhases
from rlscope.alerts.metrics import BY_NAME
from rlscope.alerts.series import Timeline, rate
from rlscope.analysis.bottleneck import dropped_ratio, judge, measure_losses
from rlscope.analysis.interval import Interval
from rlscope.analysis.ledger import AUXILIARY_ROLE
from rlscope.analysis.result import Alert, EvidenceValue, TokenStaleness, Verdict
from rlscope.analysis.run_facts import most_at_once
from rlscope.analysis.staleness import token_staleness
from rlscope.diagnose.stalled import SILENT_S, stall_of
from rlscope.diagnose.straggling_engine import Straggler, slowest_engine
from rlscope.trace.manifest import RunManifest


@dataclass(frozen=True, slots=True)
class SideState:
    """States of the workers of one role over the last five minutes with data."""

    role: str
    workers: int
    gpu_count: int
    state_ratios: Mapping[str, float]
    """Share of the role's GPU-seconds by ledger state, 0..1, largest first; empty without data."""


@dataclass(frozen=True, slots=True)
class LiveFacts:
    """The run at its last evaluated tick, over the last five minutes with data; None means no data."""

    run_id: str
    started_ns: int
    steps: int
    """Optimizer steps so far, of the trainer that recorded the most."""
    last_step_end_ns: int | None
    """End of the latest step in the files."""
    newest_ns: int | None
    """The end of the newest row of any worker, to which ages are measured: files are written seconds apart."""
    verdict: Verdict | None
    """Bottleneck of the run, without the model. None before the first tick."""
    sides: tuple[SideState, ...]
    running_per_engine: float | None
    waiting_requests: float | None
    kv_used_ratio: float | None
    staleness: TokenStaleness | None
    queue_depth_samples: float | None
    trained_tokens_per_s: float | None
    silent_s: Mapping[str, float]
    """Seconds without data, by worker: those that have not recorded their stop and send none for SILENT_S or longer."""
    straggler: Straggler | None
    """The slowest engine, if it is slower than the others by as much as the finding of `analyze` needs."""
    stall: Mapping[str, EvidenceValue] | None
    """Evidence of the finding `stalled`: who is stuck and who waits; None if the run moves."""
    hides_samplers: bool = False
    """Whether the run is a log that does not show what samplers wait for."""
    step_ns: float | None = None
    """Mean time from the end of a step to the end of the next, in a log; pauses of the run are left out."""


@dataclass(frozen=True, slots=True)
class LiveView:
    """The result of one poll."""

    now_ns: int
    evaluated_ns: int | None
    """The last tick that was evaluated; None before the first."""
    alerts: tuple[Alert, ...]
    """Firing alerts, and those resolved since the last poll."""
    facts: LiveFacts | None
    """None while the directory contains no run."""
    ended: bool
    """Whether every worker recorded its stop and all files were read, or no worker sent data for a long time."""
    problems: tuple[str, ...]
    """Problems with the data, one sentence each."""
    troubles: tuple[str, ...] = ()
    """Problems with sending notifications, saving the state or the cost of a poll, one sentence each."""


SHOWN_NS: Final = 300_000_000_000
"""Facts cover the last five minutes with data."""
LONGEST_SHOWN_NS: Final = 3_600_000_000_000
"""Facts of a log cover more if its steps are long, but no more than this."""
SHOWN_STEPS: Final = 10
"""Steps that the facts of a log cover: two or three differ by what only some of them do, such as evaluation."""

_TEXTS: Final = dict.fromkeys(("role", "state", "reason", "worker_id"), pl.String)
_NO_STATES: Final = pl.DataFrame(schema={**_TEXTS, "bucket_start_ns": pl.Int64, "gpu_s": pl.Float64})
SHOWN: Final[frozenset[Family]] = frozenset({"states", "engines", "queues", "tokens", "steps", "outcomes"})
"""The families of rows that the facts need."""


def facts_of(
    manifest: RunManifest,
    timeline: Timeline,
    workers: LiveWorkers,
    longest_ns: LongestPhases,
    now_ns: int,
    steps: int,
    last_step_end_ns: int | None,
    step_ns: float | None,
) -> LiveFacts:
    """The facts of a timeline that covers the last SHOWN_NS, or all of a shorter run."""
    sides = _sides(timeline, workers)
    policy_gpus = sum(side.gpu_count for side in sides if side.role != AUXILIARY_ROLE)
    hides_samplers = manifest.imported is not None and not _shows_samplers(timeline)
    return LiveFacts(
        run_id=manifest.run_id,
        started_ns=timeline.start_ns,
        steps=steps,
        last_step_end_ns=last_step_end_ns,
        step_ns=step_ns,
        newest_ns=workers.newest_ns,
        verdict=_verdict(timeline, policy_gpus, steps, hides_samplers=hides_samplers),
        sides=sides,
        running_per_engine=_value(timeline, "running.per_engine"),
        waiting_requests=_value(timeline, "waiting.requests"),
        kv_used_ratio=_value(timeline, "kv.used_ratio"),
        staleness=_staleness(timeline),
        queue_depth_samples=_value(timeline, "queue.depth"),
        trained_tokens_per_s=_trained_tokens_per_s(timeline, is_imported=manifest.imported is not None),
        silent_s=_silent_s(workers, now_ns),
        straggler=_straggler(timeline),
        stall=_stall(workers, longest_ns),
        hides_samplers=hides_samplers,
    )


def _trained_tokens_per_s(timeline: Timeline, *, is_imported: bool) -> float | None:
    """The tokens of the samples that steps trained on; of a log without them, those that the trainer counts, if any."""
    per_s = _value(timeline, "throughput.trained_tokens_per_s")
    if per_s or not is_imported or not timeline.buckets:
        return per_s
    rows = timeline.rows("steps")
    return rate(timeline, timeline.sums(rows, "tokens"), timeline.counts(rows))(0, timeline.buckets).value or None


def _shows_samplers(timeline: Timeline) -> bool:
    """Whether the rows tell what samplers wait for: a wait with its reason, or an engine's batch."""
    states = timeline.rows("states")
    waits = False if states.is_empty() else not states.filter(pl.col("reason").is_not_null(), role="sampler").is_empty()
    return waits or _value(timeline, "running.per_engine") is not None


def _stall(workers: LiveWorkers, longest_ns: LongestPhases) -> Mapping[str, EvidenceValue] | None:
    """Who is stuck, at the time when any worker was last heard: the clock of the watch may be off."""
    heard_ns = [life.last_ns for life in workers.lives]
    return stall_of(workers.open_phases(longest_ns), max(heard_ns)) if heard_ns else None


def _verdict(timeline: Timeline, total_gpus: int, steps: int, *, hides_samplers: bool) -> Verdict | None:
    """The verdict over these buckets, from the end of the first step on."""
    if not timeline.buckets:
        return None
    ticks = timeline.ticks
    first_ns, end_ns = (ticks.at_ns(timeline.first_bucket + place) for place in (0, timeline.buckets))
    interval = Interval(max([first_ns, *timeline.step_ends_ns[:1]]), end_ns)
    rows = timeline.rows("states")
    states = _NO_STATES if rows.is_empty() else rows.with_columns(gpu_s=pl.col("gpu_ns") / 1e9)
    outcomes = timeline.rows("outcomes")
    dropped = 0.0 if outcomes.is_empty() else dropped_ratio(outcomes)
    inside = interval.clip(states, ticks.interval_ns)
    losses = measure_losses(inside, dropped)
    return judge(total_gpus, steps, inside, interval, losses, hides_samplers=hides_samplers)


def _value(timeline: Timeline, metric: str) -> float | None:
    if not timeline.buckets:
        return None
    return BY_NAME[metric].series(timeline)(0, timeline.buckets).value


def _sides(timeline: Timeline, workers: LiveWorkers) -> tuple[SideState, ...]:
    states = timeline.rows("states")
    sides: list[SideState] = []
    for role in sorted({life.role for life in workers.lives}):
        own = [life for life in workers.lives if life.role == role]
        # A worker that was started again counts once.
        spans = [(life.start_ns, max(life.last_ns, life.start_ns + 1), life.gpu_count) for life in own]
        running = most_at_once((start_ns, end_ns, 1) for start_ns, end_ns, _ in spans)
        sides.append(SideState(role, running, most_at_once(spans), _ratios(states, role)))
    return tuple(sides)


def _ratios(rows: pl.DataFrame, role: str) -> dict[str, float]:
    if rows.is_empty():
        return {}
    states = rows.filter(role=role).group_by("state").agg(pl.col("gpu_ns").sum()).sort(-pl.col("gpu_ns"), "state")
    total_ns = int(states["gpu_ns"].sum())
    return {state: gpu_ns / total_ns for state, gpu_ns in states.iter_rows()} if total_ns else {}


def _straggler(timeline: Timeline) -> Straggler | None:
    rows = timeline.rows("engines")
    if rows.is_empty():
        return None
    row_ns = pl.col("row_ns").sum()
    speeds = (
        rows.filter("is_timed")
        .group_by("worker_id")
        .agg(
            row_s=row_ns / 1e9,
            tokens_per_s=pl.col("decode_tokens").sum() / (row_ns / 1e9),
            running_mean=pl.col("running_ns").sum() / row_ns,
        )
    )
    return slowest_engine(speeds)


def _staleness(timeline: Timeline) -> TokenStaleness | None:
    levels, weights = timeline.by_level(timeline.rows("tokens"), "staleness", "tokens")
    counts = weights.sum(axis=0).tolist()
    return token_staleness(tuple((level, count) for level, count in zip(levels, counts, strict=True) if count))


def _silent_s(workers: LiveWorkers, now_ns: int) -> dict[str, float]:
    left = {life.worker_id: now_ns - life.last_ns for life in workers.lives if life.worker_id not in workers.over}
    return {worker_id: silent_ns / 1e9 for worker_id, silent_ns in left.items() if silent_ns >= SILENT_S * 1e9}
