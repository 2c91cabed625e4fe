"""Evaluates alert rules on a recorded run, at the same ticks as a live watch, and lists every alert."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from rlscope.alerts.buckets import (
    FAMILIES,
    Family,
    Parts,
    Ticks,
    WorkerLife,
    gather,
    kv_capacities,
    own_answers,
    worker_lives,
)
from rlscope.alerts.evaluate import firing, judge_ticks, warm_up_end_ns
from rlscope.alerts.metrics import BY_NAME
from rlscope.alerts.series import Timeline
from rlscope.alerts.types import Rule, RuleSet
from rlscope.analysis.result import Alert, Severity, at_least
from rlscope.trace.query import ask
from rlscope.trace.store import OpenRun

MOST_TICKS: Final = 500_000
"""Two months at a tick every 10 s. Clocks that jump can make a run look a century long."""


@dataclass(frozen=True, slots=True)
class RuleOutcome:
    """One rule's result over the run."""

    rule: Rule
    alerts: tuple[Alert, ...]
    """In the order in which they started firing."""
    ticks: int
    """Ticks in the run."""
    judged_ticks: int
    """Ticks with enough data to evaluate the rule; with none, the rule has no result."""


@dataclass(frozen=True, slots=True)
class RuleReport:
    """The result of every rule on one run."""

    run_id: str
    start_ns: int
    end_ns: int
    outcomes: tuple[RuleOutcome, ...]
    """In the order of the rules."""
    notes: tuple[str, ...]

    @property
    def alerts(self) -> tuple[Alert, ...]:
        """Every alert, by its start."""
        found = [alert for outcome in self.outcomes for alert in outcome.alerts]
        return tuple(sorted(found, key=lambda alert: (alert.start_ns, alert.rule)))

    def reaches(self, severity: Severity) -> bool:
        """Whether a rule of that severity or higher fired."""
        return any(at_least(alert.severity, severity) for alert in self.alerts)


def evaluate_rules(run: OpenRun, rules: RuleSet, residual_ratio: float | None = None) -> RuleReport:
    """Evaluate every tick of a run, up to the first at or after its end.

    residual_ratio: the share of the trained rate that the model's prediction does not explain, if a rule needs it.
    Raises RuleError if a rule's SQL fails.
    """
    ticks, start_ns, end_ns = _span(run, rules, worker_lives(run))
    if ticks.tick_from(end_ns) > MOST_TICKS:
        return RuleReport(run.run_id, start_ns, end_ns, (), (*_notes(run), _too_long(ticks, end_ns)))
    timeline = whole_timeline(run, rules, residual_ratio)
    start_ns, end_ns = timeline.start_ns, timeline.parts.end_ns or timeline.start_ns
    last_tick = timeline.buckets
    judged = judge_ticks(rules, timeline, 1, last_tick, {}, run.run_id)
    alerts = (*judged.resolved, *firing(rules, judged.states, run.run_id))
    outcomes = tuple(
        RuleOutcome(
            rule,
            tuple(sorted((alert for alert in alerts if alert.rule == rule.name), key=lambda alert: alert.start_ns)),
            last_tick,
            judged.judged_ticks[rule.name],
        )
        for rule in rules.rules
    )
    return RuleReport(run.run_id, start_ns, end_ns, outcomes, _notes(run))


def whole_timeline(run: OpenRun, rules: RuleSet, residual_ratio: float | None = None) -> Timeline:
    """The whole run as one timeline, with the rows that the rules need."""
    workers = worker_lives(run)
    ticks, _, end_ns = _span(run, rules, workers)
    step_ends_ns = step_ends(run)
    parts = Parts(
        ticks=ticks,
        frames=gather(run, ticks, families_of(rules), end_ns),
        workers=workers,
        kv_capacity_tokens=kv_capacities(run),
        dropped_rows=sum(run.dropped_rows.values()),
        stored_rows=sum(run.row_counts.values()),
        max_staleness=run.config.max_staleness,
        end_ns=end_ns,
        own=own_answers(run, rules, ticks),
    )
    return Timeline(
        parts=parts,
        first_bucket=0,
        buckets=max(0, ticks.tick_from(end_ns)),
        step_ends_ns=step_ends_ns,
        warm_up_end_ns=warm_up_end_ns(step_ends_ns, rules.warm_up_steps),
        residual_ratio=residual_ratio,
    )


def _span(run: OpenRun, rules: RuleSet, workers: Sequence[WorkerLife]) -> tuple[Ticks, int, int]:
    """The ticks of a run, its start and end."""
    start_ns = min((worker.start_ns for worker in workers), default=0)
    end_ns = max((worker.last_ns for worker in workers), default=start_ns)
    return Ticks(start_ns if run.created_ns is None else run.created_ns, rules.interval_ns), start_ns, end_ns


def _too_long(ticks: Ticks, end_ns: int) -> str:
    days = (end_ns - ticks.origin_ns) / 8.64e13
    return (
        f"No rule was evaluated: by its workers' clocks the run lasts {days:.0f} days, more than {MOST_TICKS:,} ticks."
        " Set a longer interval in the rules."
    )


def step_ends(run: OpenRun) -> tuple[int, ...]:
    """The ends of the optimizer steps, ascending, UTC epoch."""
    return tuple(ask(run, "training_steps")["end_ns"].sort())


def families_of(rules: RuleSet) -> tuple[Family, ...]:
    """The families of rows that the rules' metrics need."""
    needed = {BY_NAME[rule.metric].family for rule in rules.rules if rule.metric is not None}
    return tuple(family for family in FAMILIES if family in needed)


def _notes(run: OpenRun) -> tuple[str, ...]:
    skipped = tuple(f"skipped {file.path}: {file.why}" for file in run.skipped_files)
    return (*skipped, *run.gaps)
