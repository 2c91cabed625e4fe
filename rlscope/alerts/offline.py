"""Evaluates alert rules on a recorded run, at the same ticks as a live watch, and lists every alert.

If a run after its warm-up is shorter than a rule's window, or too short for its `for`, the rule could never fire. Such
a rule is evaluated once, over the whole run after warm-up. Metrics without a window keep their ticks.
"""

from bisect import bisect_right
from dataclasses import dataclass, replace
from typing import Annotated

from rlscope.alerts.buckets import Ticks, gather, kv_capacities, step_ends, worker_lives
from rlscope.alerts.evaluate import condition, firing, judge_ticks, warm_up_end_ns
from rlscope.alerts.metrics import BY_NAME
from rlscope.alerts.series import Timeline
from rlscope.alerts.types import WHOLE_RUN, Rule, RuleSet
from rlscope.analysis.result import Alert, Finding, Severity, at_least
from rlscope.document import LEFT_OUT, computed_field
from rlscope.trace.query import NO_CELLS, Cells
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
    start_ns, end_ns = bare.start_ns, bare.end_ns or bare.start_ns
    whole_from_ns = {rule.name: _whole_from_ns(rule, rules, bare, end_ns) for rule in rules.rules}
    ticking = tuple(rule for rule in rules.rules if whole_from_ns[rule.name] is None)
    outcomes = _evaluated(run, replace(rules, rules=ticking), beside=beside)
    # Keep the rules about the data, because hints are suppressed while one of them fires.
    quality = tuple(rule for rule in ticking if rule.kind == "data_quality")
    for from_ns in sorted({each for each in whole_from_ns.values() if each is not None}):
        own = tuple(rule for rule in rules.rules if whole_from_ns[rule.name] == from_ns)
        forms = tuple(replace(rule, window=WHOLE_RUN, for_ns=0, keep_firing_for_ns=0) for rule in own)
        # Ticks start there, because a bucket that overlaps the warm-up would be left out.
        found = _evaluated(run, replace(rules, rules=(*quality, *forms)), from_ns)
        outcomes |= {rule.name: _as_whole(rule, found[rule.name], bare, from_ns) for rule in own}
    skipped = tuple(f"skipped {file.path}: {file.why}" for file in run.skipped_files)
    return RuleReport(
        run_id=run.run_id,
        start_ns=start_ns,
        end_ns=end_ns,
        rules=tuple(outcomes[rule.name] for rule in rules.rules),
        warnings=(*skipped, *map(str, run.completeness.gaps), *run.gaps),
    )


def _evaluated(
    run: OpenRun, rules: RuleSet, origin_ns: int | None = None, beside: Cells = NO_CELLS
) -> dict[str, RuleOutcome]:
    """The outcome of each rule at the ticks from origin_ns on, by its name."""
    timeline = whole_timeline(run, rules, origin_ns, beside)
    judged = judge_ticks(rules, timeline, 1, timeline.buckets, {}, run.run_id)
    fired = sorted((*judged.resolved, *firing(rules, judged.states, run.run_id)), key=lambda alert: alert.start_ns)
    return {
        rule.name: RuleOutcome(
            rule=rule,
            alerts=tuple(alert for alert in fired if alert.rule == rule.name),
            ticks=timeline.buckets,
            evaluated_ticks=judged.evaluated_ticks[rule.name],
        )
        for rule in rules.rules
    }


def _as_whole(rule: Rule, outcome: RuleOutcome, bare: Timeline, from_ns: int) -> RuleOutcome:
    """The outcome of a rule that was evaluated once, over the run from from_ns on."""
    outcome = replace(outcome, rule=rule, ticks=bare.buckets)
    if not outcome.evaluated_ticks or rule.window == WHOLE_RUN:
        return outcome
    length_s = ((bare.end_ns or bare.start_ns) - from_ns) / 1e9
    marked = {"start_ns": from_ns, "held_since_ns": from_ns, "evaluated_over_s": length_s}
    alerts = tuple(replace(alert, **marked) for alert in outcome.alerts)
    return replace(outcome, alerts=alerts, evaluated_over_s=length_s)


def _whole_from_ns(rule: Rule, rules: RuleSet, timeline: Timeline, end_ns: int) -> int | None:
    """The time from which a rule is evaluated once; None if its window and its `for` fit, or if it has no window."""
    if not BY_NAME[rule.metric].looks_back:
        return None
    has_warm_up = rule.kind != "data_quality" and rules.warm_up_steps > 0
    start_ns = timeline.warm_up_end_ns if has_warm_up else timeline.start_ns
    if start_ns is None:
        return None
    ticks, window, length_ns = timeline.ticks, rule.window, end_ns - start_ns
    ticks_after = timeline.buckets - max(0, ticks.tick_from(start_ns))
    if window == WHOLE_RUN:
        # It is judged over what lies between ticks after warm-up, and a run of seconds has no two of them there.
        return start_ns if ticks_after <= 0 < length_ns else None
    steps = len(timeline.step_ends_ns) - bisect_right(timeline.step_ends_ns, start_ns)
    fits = length_ns >= window.length_ns if window.length_ns is not None else steps >= (window.steps or 0)
    return None if fits and (ticks_after - 1) * ticks.interval_ns >= rule.for_ns else start_ns


def whole_timeline(
    run: OpenRun,
    rules: RuleSet,
    origin_ns: int | None = None,
    beside: Cells = NO_CELLS,
) -> Timeline:
    """The run as one timeline, with the rows that the rules need; from origin_ns on, if given."""
    workers = worker_lives(run)
    start_ns = min((worker.start_ns for worker in workers), default=0)
    end_ns = max((worker.last_ns for worker in workers), default=start_ns)
    if origin_ns is None:
        origin_ns = start_ns if run.created_ns is None else run.created_ns
    ticks, step_ends_ns = Ticks(origin_ns, rules.interval_ns), step_ends(run)
    return Timeline(
        ticks=ticks,
        first_bucket=0,
        buckets=max(0, ticks.tick_from(end_ns)),
        frames=gather(run, ticks, {BY_NAME[rule.metric].family for rule in rules.rules}, end_ns, beside),
        workers=workers,
        kv_capacity_tokens=kv_capacities(run),
        dropped_rows=sum(run.dropped_rows.values()),
        stored_rows=sum(run.row_counts.values()),
        max_staleness=run.config.max_staleness,
        step_ends_ns=step_ends_ns,
        warm_up_end_ns=warm_up_end_ns(step_ends_ns, rules.warm_up_steps),
        missing_rows=None if run.completeness.state == "unknown" else run.completeness.concerned_rows,
        end_ns=end_ns,
    )


def tick_cells(run: OpenRun, rules: RuleSet) -> Cells:
    """The time between the ticks at which the rules are evaluated, as cells."""
    ticks = whole_timeline(run, replace(rules, rules=())).ticks
    return Cells(ticks.origin_ns, ticks.interval_ns)
