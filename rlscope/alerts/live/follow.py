"""Follows a run in progress: reads only new files and evaluates each tick of the rules once.

A tick is due once every running worker has recorded something that ends after it, or grace_ns after it. Late rows
update the buckets they belong to and count in later ticks. Earlier ticks are not evaluated again; the number of late
rows is reported. Ticks, definitions and code are those of `offline`, so a run whose rows all arrive in time has the
same result as after its end. Times are taken as they were written: clocks that disagree are corrected after the run.
Memory is bounded: `rows` drops old rows, and buckets are dropped after `_keep_ns`.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Final

import polars as pl
import pyarrow as pa
from rlscope_otel.schema import TIMES

from rlscope.alerts.buckets import Family, Ticks, gather, step_ends
from rlscope.alerts.durations import write_window
from rlscope.alerts.evaluate import RuleState, firing, judge_ticks, warm_up_end_ns, written
from rlscope.alerts.live.facts import (
    LONGEST_SHOWN_NS,
    SHOWN,
    SHOWN_NS,
    LiveFacts,
    LiveView,
    facts_of,
)
from rlscope.alerts.live.files import LiveFiles
from rlscope.alerts.live.pieces import Piece
from rlscope.alerts.live.rows import CORRECTED_NS, LiveRows
from rlscope.alerts.live.workers import LiveWorkers, PhaseKind
from rlscope.alerts.metrics import BY_NAME
from rlscope.alerts.series import HISTORY_NS, Timeline, merged
from rlscope.alerts.types import Rule, RuleSet
from rlscope.analysis.result import Alert, EvidenceValue
from rlscope.errors import RunFolderError
from rlscope.format import counted, duration
from rlscope.importers.layout import longest_pause_ns
from rlscope.trace.config import read_config
from rlscope.trace.manifest import RunManifest, read_manifest
from rlscope.trace.query import ask
from rlscope.trace.store import open_rows
from rlscope.trace.usual_times import usual_creation, usual_window, with_usual_times
from rlscope.trace.worker_files import KnownWorkers, read_workers

GRACE_NS: Final = 30_000_000_000
"""Fifteen flushes at the usual interval."""
_READ: Final = frozenset(TIMES) - {"gpu_samples"}
"""Tables that metrics are computed from."""


@dataclass(slots=True)
class RunProgress:
    """Progress of the rules and their results so far: the data that a later watch needs to resume, without secrets."""

    rules: str = ""
    """Identity of the rules, for `is_saved_with`."""
    origin_ns: int | None = None
    """Origin of the ticks, UTC epoch; None while it is unknown."""
    evaluated: int = 0
    """The last tick that was evaluated."""
    warm_up_end_ns: int | None = None
    late_rows: int = 0
    late_ns: int = 0
    """Longest delay of a late row."""
    states: dict[str, RuleState] = field(default_factory=dict[str, RuleState])
    """By rule."""
    log_origin_ns: int | None = None
    """Start of a log without dates."""
    log_head: str | None = None
    """Hash of the first bytes of a log, once they are there."""
    log_bytes: int = 0
    """Size of a log when it was read."""


class LiveRun:
    """A run in progress; its directory may appear later."""

    def __init__(
        self,
        folder: Path,
        rules: RuleSet,
        grace_ns: int = GRACE_NS,
        shown_steps: int = 0,
        state: RunProgress | None = None,
    ) -> None:
        """Begin to follow a run, or resume from a state that was saved with these rules.

        grace_ns: longest wait for rows of a tick. shown_steps: steps that the facts cover, if these are longer than
        SHOWN_NS. state: the result of `saved`, in any process, for which `is_saved_with` is true.
        """
        self._folder = folder
        self._shown_steps = shown_steps
        self._rules = rules
        self._grace_ns = grace_ns
        reaches_ns = [rule.window.length_ns or HISTORY_NS for rule in rules.rules]
        self._reach = -(-max(reaches_ns, default=0) // rules.interval_ns)
        """Number of buckets in the longest window."""
        self._keep_ns = max([HISTORY_NS, *reaches_ns]) + rules.interval_ns
        self._families_ns = _families_ns(rules, LONGEST_SHOWN_NS if shown_steps else SHOWN_NS)
        """Reach of the buckets of each family into the past."""
        self._known_workers: KnownWorkers = {}
        self._files = LiveFiles(folder, grace_ns, _READ)
        self._rows = LiveRows()
        self._pending: list[Piece] = []
        """Rows that start after the last requested time."""
        self._frames: dict[Family, pl.DataFrame] = {}
        self._step_ends_ns: tuple[int, ...] = ()
        self._progress = replace(state) if state else RunProgress()
        self._filled = max(0, self._progress.evaluated - self._keep_ns // rules.interval_ns)
        """Buckets before this one are computed."""
        self._dirty_from = self._filled
        """The first bucket that is out of date."""
        self._longest_ns: dict[PhaseKind, int] = {}
        """The longest ended phase of each kind that this watch has seen."""

    @property
    def held_rows(self) -> int:
        """Rows of the trace in memory."""
        return self._rows.count

    def saved(self) -> RunProgress:
        """Return the state that a later watch needs to resume."""
        return replace(self._progress, rules=_identity(self._rules))

    def close(self) -> None:
        """Forget the firing alerts: the run has ended, and a later watch must not send its alerts again."""
        self._progress.states = {}

    def poll(self, now_ns: int) -> LiveView:
        """Read new files and evaluate the ticks that are due; now_ns is UTC epoch."""
        try:
            manifest = read_manifest(self._folder)
        except RunFolderError as error:
            return LiveView(now_ns, None, (), None, False, (str(error),))
        # Worker files first, so that the rows they count are in files that exist by now.
        written, faulty = read_workers(self._folder, self._known_workers)
        window = usual_window({}, written)
        written, odd_times = with_usual_times(written, {}, window)
        manifest, odd_creation = usual_creation(manifest, window)
        if self._progress.origin_ns is None:
            starts_ns = [each.started_ns for each in written]
            created_ns = manifest.created_ns
            self._progress.origin_ns = min(starts_ns, default=None) if created_ns is None else created_ns
        ticks = self._ticks
        due_ns = 0 if ticks is None else ticks.at_ns(self._filled) + CORRECTED_NS
        # If a time was removed, the window of the other workers may change.
        new = self._files.look(written, now_ns, manifest.run_id, None if odd_times else window, due_ns)
        self._pending += [piece for piece in new.pieces if piece.table in _READ]
        workers = LiveWorkers.of(written, self._files, now_ns, self._grace_ns)
        resolved = self._catch_up(new.read, manifest, workers, now_ns)
        problems = (*(f"skipped {file.path}: {file.why}" for file in faulty), *odd_times, *odd_creation)
        return self._view(manifest, workers, now_ns, resolved, problems)

    @property
    def _ticks(self) -> Ticks | None:
        origin_ns = self._progress.origin_ns
        return None if origin_ns is None else Ticks(origin_ns, self._rules.interval_ns)

    def _catch_up(
        self, read: Sequence[tuple[str, pa.Table]], manifest: RunManifest, workers: LiveWorkers, now_ns: int
    ) -> tuple[Alert, ...]:
        """Keep the rows that were read, evaluate the due ticks, and return the resolved alerts.

        They are evaluated in pieces, so that a long run need not fit in memory if the watch starts late.
        """
        resolved: list[Alert] = []
        ticks = self._ticks
        if ticks is None:
            return ()
        for table, rows in read:
            self._note_old(self._rows.keep(table, rows), table, ticks)
        due = self._due(workers, now_ns, ticks)
        while self._filled < due:
            stretch = min(due, self._filled + max(1, CORRECTED_NS // ticks.interval_ns))
            self._read_until(ticks.at_ns(stretch), ticks)
            self._fill(manifest, workers, stretch, ticks)
            resolved += self._judge(manifest, workers, stretch, ticks)
            self._rows.prune(ticks.at_ns(stretch))
        self._read_until(now_ns + self._grace_ns, ticks)
        return tuple(resolved)

    def _due(self, workers: LiveWorkers, now_ns: int, ticks: Ticks) -> int:
        """The first bucket that is not due."""
        due_ns, until_ns = workers.due_ns(now_ns, self._grace_ns), workers.until_ns
        if due_ns is None or until_ns is None:
            return self._filled
        return min(max(self._filled, ticks.bucket_of(due_ns)), ticks.tick_from(until_ns))

    def _read_until(self, until_ns: int, ticks: Ticks) -> None:
        """Read the pieces that start before until_ns, and note the first bucket that is out of date."""
        oldest_ns = ticks.at_ns(self._filled) - self._keep_ns
        due = [piece for piece in self._pending if piece.first_ns < until_ns and piece.last_ns >= oldest_ns]
        self._pending = [piece for piece in self._pending if piece.first_ns >= until_ns]
        for piece in due:
            try:
                self._note_old(self._rows.keep(piece.table, piece.read()), piece.table, ticks)
            except (OSError, pa.ArrowException) as error:
                self._files.skipped.append(f"skipped {piece.table}/{piece.path.name}: {error}")

    def _note_old(self, rows: pa.Table, table: str, ticks: Ticks) -> None:
        """Count the late rows among these, and note the first bucket that they put out of date."""
        if not rows.num_rows:
            return
        filled_ns = ticks.at_ns(self._filled)
        starts_ns = rows[TIMES[table][0]].to_numpy()
        count, first_ns = int((starts_ns < filled_ns).sum()), int(starts_ns.min())
        if count and self._filled == self._progress.evaluated > 0:
            self._progress.late_rows += count
            self._progress.late_ns = max(self._progress.late_ns, filled_ns - first_ns)
        oldest = max(0, self._filled - CORRECTED_NS // ticks.interval_ns)
        self._dirty_from = min(self._dirty_from, max(oldest, ticks.bucket_of(first_ns)))

    def _fill(self, manifest: RunManifest, workers: LiveWorkers, until: int, ticks: Ticks) -> None:
        """Compute the buckets that are new or out of date, up to `until`."""
        first = min(self._dirty_from, self._filled)
        tables, since_ns = self._rows.since(ticks.at_ns(first), ticks.at_ns(until))
        end_ns = ticks.at_ns(until) if workers.end_ns is None else min(ticks.at_ns(until), workers.end_ns)
        with open_rows(self._folder, manifest, workers.since(since_ns), tables) as run:
            frames, ends_ns = gather(run, ticks, self._families_ns, end_ns), step_ends(run)
            self._note_longest(ask(run, "longest_phases"))
        self._frames = {
            name: merged(
                self._frames.get(name), frame, range(first, until), self._needed_from(self._families_ns[name], ticks)
            )
            for name, frame in frames.items()
        }
        needed = self._needed_from(self._keep_ns, ticks)
        kept = [end_ns for end_ns in self._step_ends_ns if needed <= ticks.bucket_of(end_ns) < first]
        fresh = [end_ns for end_ns in ends_ns if first <= ticks.bucket_of(end_ns) < until]
        self._step_ends_ns = tuple(kept + fresh)
        self._filled = self._dirty_from = until

    def _note_longest(self, phases: pl.DataFrame) -> None:
        for role, doing, reason, longest_ns in phases.iter_rows():
            kind = (role, doing, reason)
            self._longest_ns[kind] = max(longest_ns, self._longest_ns.get(kind, 0))

    def _needed_from(self, reach_ns: int, ticks: Ticks) -> int:
        """The first bucket that the next tick to be evaluated needs if it looks back so far."""
        return self._progress.evaluated - -(-reach_ns // ticks.interval_ns)

    def _judge(self, manifest: RunManifest, workers: LiveWorkers, until: int, ticks: Ticks) -> tuple[Alert, ...]:
        if until <= self._progress.evaluated:
            return ()
        if self._progress.warm_up_end_ns is None:
            self._progress.warm_up_end_ns = warm_up_end_ns(self._step_ends_ns, self._rules.warm_up_steps)
        timeline = self._timeline(manifest, workers, ticks, self._progress.evaluated + 1 - self._reach)
        judged = judge_ticks(
            self._rules, timeline, self._progress.evaluated + 1, until, self._progress.states, manifest.run_id
        )
        self._progress.states, self._progress.evaluated = dict(judged.states), until
        return judged.resolved

    def _timeline(
        self, manifest: RunManifest, workers: LiveWorkers, ticks: Ticks, first: int, until: int | None = None
    ) -> Timeline:
        """The timeline from one bucket on; no more than needed, so that a poll costs the same in a long run."""
        config, _ = read_config(manifest.config)
        first = max(0, first)
        return Timeline(
            ticks=ticks,
            first_bucket=first,
            buckets=max(0, (self._filled if until is None else until) - first),
            frames=self._frames,
            workers=workers.lives,
            kv_capacity_tokens=workers.kv_capacity_tokens,
            dropped_rows=workers.dropped_rows,
            stored_rows=self._files.stored_rows,
            max_staleness=config.max_staleness,
            step_ends_ns=self._step_ends_ns,
            warm_up_end_ns=self._progress.warm_up_end_ns,
            end_ns=workers.end_ns,
        )

    def _view(
        self,
        manifest: RunManifest,
        workers: LiveWorkers,
        now_ns: int,
        resolved: Sequence[Alert],
        problems: Sequence[str],
    ) -> LiveView:
        ticks = self._ticks
        is_evaluated = self._filled > 0 and self._progress.evaluated > 0
        facts = None if ticks is None else self._facts(manifest, workers, now_ns, ticks)
        rules = {rule.name: rule for rule in self._rules.rules}
        alerts = (*firing(self._rules, self._progress.states, manifest.run_id), *resolved)
        ended = workers.has_ended(now_ns, self._grace_ns) and (
            workers.end_ns is None or ticks is None or self._progress.evaluated >= ticks.tick_from(workers.end_ns)
        )
        if not workers.workers:
            problems = (*problems, "workers/: no readable worker file yet, so no GPU-second can be accounted for")
        return LiveView(
            now_ns=now_ns,
            evaluated_ns=ticks.at_ns(self._progress.evaluated) if ticks is not None and is_evaluated else None,
            alerts=tuple(_summarized(rules[alert.rule], alert, facts and facts.stall) for alert in alerts),
            facts=facts,
            ended=ended,
            problems=(
                *problems,
                *self._files.skipped,
                *self._rows.left_out(),
                *self._late(),
            ),
        )

    def _facts(self, manifest: RunManifest, workers: LiveWorkers, now_ns: int, ticks: Ticks) -> LiveFacts:
        number, last_ns = self._files.most_rows("train_steps"), self._files.step_end_ns
        step_ns = self._mean_step_ns(number, last_ns, workers)
        reach_ns = 0 if step_ns is None else min(LONGEST_SHOWN_NS, round(self._shown_steps * step_ns))
        shown = max(1, max(SHOWN_NS, reach_ns) // ticks.interval_ns)
        newest_ns = workers.newest_ns
        until = self._filled if newest_ns is None else min(self._filled, ticks.tick_from(newest_ns))
        timeline = self._timeline(manifest, workers, ticks, until - shown, until)
        return facts_of(manifest, timeline, workers, self._longest_ns, now_ns, number, last_ns, step_ns)

    def _mean_step_ns(self, number: int, last_ns: int | None, workers: LiveWorkers) -> float | None:
        """Return the mean time of the latest steps of a log without pauses, or of all steps if these are too few."""
        start_ns = workers.start_ns
        if not self._shown_steps or not number or last_ns is None or start_ns is None:
            return None
        longest_ns = longest_pause_ns(self._step_ends_ns)
        periods_ns = [b - a for a, b in pairwise(self._step_ends_ns) if b - a <= longest_ns]
        return sum(periods_ns) / len(periods_ns) if periods_ns else (last_ns - start_ns) / number

    def _late(self) -> tuple[str, ...]:
        if not self._progress.late_rows:
            return ()
        rows = counted(self._progress.late_rows, "row")
        reach = duration(self._progress.late_ns / 1e9)
        return (f"{rows} arrived late, by up to {reach}; only later ticks count late rows",)


def _summarized(rule: Rule, alert: Alert, stall: Mapping[str, EvidenceValue] | None) -> Alert:
    """Return the alert with a summary; a firing alarm also names the worker that is stuck, if one is."""
    summary = alert.annotations.get("summary")
    if summary is None and "description" not in alert.annotations:
        value, threshold = written(rule, alert.value), written(rule, rule.threshold)
        summary = f"{rule.metric} over {write_window(rule.window)} is {value}, {rule.direction} {threshold}"
    if stall is not None and rule.kind == "alarm" and alert.end_ns is None:
        # Without a duration, which would change at every poll.
        said = alert.rule if summary is None else summary
        summary = f"{said}; {stall['worker_id']} is stuck: {stall['doing']}"
    return alert if summary is None else replace(alert, annotations={**alert.annotations, "summary": summary})


def _families_ns(rules: RuleSet, shown_ns: int) -> dict[Family, int]:
    """Return the reach of the rules and the facts into past buckets, by family."""
    reaches_ns = dict.fromkeys(SHOWN, shown_ns)
    for rule in rules.rules:
        metric = BY_NAME[rule.metric]
        if metric.family is not None:
            reach_ns = (metric.looks_back and rule.window.length_ns) or HISTORY_NS
            reaches_ns[metric.family] = max(reach_ns, reaches_ns.get(metric.family, shown_ns))
    return reaches_ns


def is_saved_with(rules: RuleSet, state: RunProgress) -> bool:
    """Return whether a state was saved with these rules."""
    return state.rules == _identity(rules)


def _identity(rules: RuleSet) -> str:
    return hashlib.sha256(repr(rules).encode()).hexdigest()[:16]
