"""Evaluates alert rules on a recorded run, at the same ticks as a live watch, and lists every alert.

If a run after its warm-up is shorter than a rule's window, or too short for its `for`, the rule could never fire. Such
a rule is evaluated once, over the whole run after warm-up. Metrics without a window keep their ticks.
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, NamedTuple

from rlscope.alerts.buckets import (
    FAMILIES,
    Family,
    Parts,
    Ticks,
    WorkerLife,
    gather,
    kv_capacities,
    worker_lives,
)
from rlscope.alerts.evaluate import condition, firing, judge_ticks, warm_up_end_ns
from rlscope.alerts.metrics import BY_NAME
from rlscope.alerts.series import Timeline
from rlscope.alerts.types import WHOLE_RUN, Rule, RuleSet
from rlscope.analysis.result import Alert, Finding, Severity, at_least
from rlscope.document import LEFT_OUT, computed_field
from rlscope.trace.query import NO_CELLS, Cells, ask
from rlscope.trace.store import OpenRun


@dataclass(frozen=True, slots=True)
class RuleOutcome:
    """One rule's result over the run."""

    rule: Rule
    """The rule."""
    alerts: Annotated[tuple[Alert, ...], LEFT_OUT]
    """In the order in which they started firing."""
    ticks: int
    """Ticks in the run."""
    evaluated_ticks: int
    """Ticks with enough data to evaluate the rule; with none, the rule has no result."""
    evaluated_over_s: float | None = None
    """Length of the run after warm-up, if the rule was evaluated once over it. None if it was evaluated at ticks."""

    @computed_field
    @property
    def condition(self) -> str:
        """The condition in words: metric, window, comparison and threshold."""
        return condition(self.rule)

    @computed_field
    @property
    def fired(self) -> int:
        """Number of times the rule fired."""
        return len(self.alerts)


@dataclass(frozen=True, slots=True)
class RuleReport:
    """The result of every rule on one run."""

    run_id: str
    """Identifier of the run."""
    start_ns: int
    """Start of the run's first worker, in UTC epoch nanoseconds."""
    end_ns: int
    """Time of the last report from any worker, in UTC epoch nanoseconds."""
    rules: tuple[RuleOutcome, ...]
    """All rules that were evaluated, in the order of the rule set."""
    warnings: tuple[str, ...]
    """Data that could not be read, one sentence each."""
    findings: tuple[Finding, ...] | None = None
    """Problems found by the diagnosis, the most expensive first; None if the diagnosis did not run."""
    fail_on_finding: Severity | None = None
    """Lowest severity at which a finding fails the check; None if findings cannot fail it."""

    @computed_field
    @property
    def alerts(self) -> tuple[Alert, ...]:
        """All periods in which a rule fired, by start time."""
        found = [alert for outcome in self.rules for alert in outcome.alerts]
        return tuple(sorted(found, key=lambda alert: (alert.start_ns, alert.rule)))

    @property
    def unjudged(self) -> tuple[RuleOutcome, ...]:
        """The rules that had too little data in this run."""
        return tuple(outcome for outcome in self.rules if not outcome.evaluated_ticks)

    def reaches(self, severity: Severity) -> bool:
        """Whether a rule of that severity or higher fired."""
        return any(at_least(alert.severity, severity) for alert in self.alerts)

    @property
    def failed_on_finding(self) -> bool:
        """Whether there is a finding of the severity that fails, or higher."""
        floor = self.fail_on_finding
        return floor is not None and any(at_least(finding.severity, floor) for finding in self.findings or ())

    def fails(self, fail_on: Severity) -> bool:
        """Whether a rule of that severity or higher fired, or there is a finding that fails."""
        return self.reaches(fail_on) or self.failed_on_finding


def evaluate_rules(run: OpenRun, rules: RuleSet, beside: Cells = NO_CELLS) -> RuleReport:
    """Evaluate every tick of a run, up to the first at or after its end.

    beside: the cells of another grid that the run is asked about.
    """
    bare = whole_timeline(run, replace(rules, rules=()))
    start_ns, end_ns = bare.start_ns, bare.parts.end_ns or bare.start_ns
    return RuleReport(run.run_id, start_ns, end_ns, _outcomes(run, rules, bare, end_ns, beside), _unread(run))


class _Whole(NamedTuple):
    """A rule in the form that is evaluated once, over the run after warm-up."""

    rule: Rule
    start_ns: int
    length_s: float


class _Result(NamedTuple):
    """Result of one rule."""

    alerts: tuple[Alert, ...]
    evaluated_ticks: int


def _outcomes(run: OpenRun, rules: RuleSet, bare: Timeline, end_ns: int, beside: Cells) -> tuple[RuleOutcome, ...]:
    """The outcome of each rule, those over the whole run among them. bare: the run as a timeline without rows."""
    whole = {rule.name: form for rule in rules.rules if (form := _whole_form(rule, rules, bare, end_ns))}
    ticking = replace(rules, rules=_except(rules, whole))
    results = _results(ticking, whole_timeline(run, ticking, beside=beside), run.run_id)
    for start_ns in sorted({form.start_ns for form in whole.values()}):
        forms = tuple(form.rule for form in whole.values() if form.start_ns == start_ns)
        # Keep the rules about the data, because hints are suppressed while one of them fires.
        quality = tuple(rule for rule in ticking.rules if rule.kind == "data_quality")
        moved = replace(rules, rules=(*quality, *forms))
        # Ticks start there, because a bucket that overlaps the warm-up would be left out.
        own = whole_timeline(run, moved, start_ns)
        found = _results(moved, own, run.run_id)
        results |= {form.name: found[form.name] for form in forms}
    return tuple(_outcome(rule, results[rule.name], bare.buckets, whole.get(rule.name)) for rule in rules.rules)


def _except(rules: RuleSet, whole: Mapping[str, _Whole]) -> tuple[Rule, ...]:
    return tuple(rule for rule in rules.rules if rule.name not in whole)


def _results(rules: RuleSet, timeline: Timeline, run_id: str) -> dict[str, _Result]:
    judged = judge_ticks(rules, timeline, 1, timeline.buckets, {}, run_id)
    alerts = (*judged.resolved, *firing(rules, judged.states, run_id))
    return {
        rule.name: _Result(
            tuple(sorted((each for each in alerts if each.rule == rule.name), key=lambda alert: alert.start_ns)),
            judged.evaluated_ticks[rule.name],
        )
        for rule in rules.rules
    }


def _outcome(rule: Rule, result: _Result, ticks: int, form: _Whole | None) -> RuleOutcome:
    if form is None or not result.evaluated_ticks or rule.window == WHOLE_RUN:
        return RuleOutcome(rule, result.alerts, ticks, result.evaluated_ticks)
    marked = {"start_ns": form.start_ns, "held_since_ns": form.start_ns, "evaluated_over_s": form.length_s}
    alerts = tuple(replace(alert, **marked) for alert in result.alerts)
    return RuleOutcome(rule, alerts, ticks, result.evaluated_ticks, form.length_s)


def _whole_form(rule: Rule, rules: RuleSet, timeline: Timeline, end_ns: int) -> _Whole | None:
    """The rule over the whole run; None if its window and its `for` fit into the run, or if it has no window."""
    if not BY_NAME[rule.metric].looks_back:
        return None
    has_warm_up = rule.kind != "data_quality" and rules.warm_up_steps > 0
    start_ns = timeline.warm_up_end_ns if has_warm_up else timeline.start_ns
    if start_ns is None:
        return None
    steps_ns, ticks = timeline.step_ends_ns, timeline.ticks
    if rule.window == WHOLE_RUN:
        # It is judged over what lies between ticks after warm-up, and a run of seconds has no two of them there.
        has_tick = max(0, ticks.tick_from(start_ns)) < timeline.buckets
        return None if has_tick or end_ns <= start_ns else _Whole(rule, start_ns, (end_ns - start_ns) / 1e9)
    steps = len(steps_ns) - bisect_right(steps_ns, start_ns)
    longest_hold_ns = (timeline.buckets - 1 - max(0, ticks.tick_from(start_ns))) * ticks.interval_ns
    if _fits(rule, end_ns - start_ns, steps) and longest_hold_ns >= rule.for_ns:
        return None
    form = replace(rule, window=WHOLE_RUN, for_ns=0, keep_firing_for_ns=0)
    return _Whole(form, start_ns, (end_ns - start_ns) / 1e9)


def _fits(rule: Rule, length_ns: int, steps: int) -> bool:
    window = rule.window
    return length_ns >= window.length_ns if window.length_ns is not None else steps >= (window.steps or 0)


def whole_timeline(
    run: OpenRun,
    rules: RuleSet,
    origin_ns: int | None = None,
    beside: Cells = NO_CELLS,
) -> Timeline:
    """The run as one timeline, with the rows that the rules need; from origin_ns on, if given."""
    workers = worker_lives(run)
    ticks, end_ns = _span(run, rules, workers)
    ticks = ticks if origin_ns is None else replace(ticks, origin_ns=origin_ns)
    step_ends_ns = step_ends(run)
    parts = Parts(
        ticks=ticks,
        frames=gather(run, ticks, families_of(rules), end_ns, beside),
        workers=workers,
        kv_capacity_tokens=kv_capacities(run),
        dropped_rows=sum(run.dropped_rows.values()),
        stored_rows=sum(run.row_counts.values()),
        max_staleness=run.config.max_staleness,
        missing_rows=None if run.completeness.state == "unknown" else run.completeness.concerned_rows,
        end_ns=end_ns,
    )
    return Timeline(
        parts=parts,
        first_bucket=0,
        buckets=max(0, ticks.tick_from(end_ns)),
        step_ends_ns=step_ends_ns,
        warm_up_end_ns=warm_up_end_ns(step_ends_ns, rules.warm_up_steps),
    )


def tick_cells(run: OpenRun, rules: RuleSet) -> Cells:
    """The time between the ticks at which the rules are evaluated, as cells."""
    ticks, _ = _span(run, rules, worker_lives(run))
    return Cells(ticks.origin_ns, ticks.interval_ns)


def _span(run: OpenRun, rules: RuleSet, workers: Sequence[WorkerLife]) -> tuple[Ticks, int]:
    """The ticks of a run, and its end."""
    start_ns = min((worker.start_ns for worker in workers), default=0)
    end_ns = max((worker.last_ns for worker in workers), default=start_ns)
    return Ticks(start_ns if run.created_ns is None else run.created_ns, rules.interval_ns), end_ns


def step_ends(run: OpenRun) -> tuple[int, ...]:
    """The ends of the optimizer steps, ascending, UTC epoch."""
    return tuple(ask(run, "training_steps")["end_ns"].sort())


def families_of(rules: RuleSet) -> tuple[Family, ...]:
    """The families of rows that the rules' metrics need."""
    needed = {BY_NAME[rule.metric].family for rule in rules.rules}
    return tuple(family for family in FAMILIES if family in needed)


def _unread(run: OpenRun) -> tuple[str, ...]:
    skipped = tuple(f"skipped {file.path}: {file.why}" for file in run.skipped_files)
    return (*skipped, *map(str, run.completeness.gaps), *run.gaps)
