"""Evaluates alert rules tick by tick, with Prometheus' `for` and `keep_firing_for`. Pure; used live and afterwards.

At each tick, in the order of Prometheus' alerting rules (rules/alerting.go, AlertingRule.Eval):
- The condition is true: an inactive rule becomes pending. A pending rule fires once the condition has been true for
  `for`; with `for = 0`, at once. A firing rule stays firing and any pending resolution is cancelled.
- The condition is false: a pending rule becomes inactive. A firing rule is resolved once `keep_firing_for` has passed
  since the first tick at which the condition was false.
- There is no value: nothing changes for LOOKBACK_NS, Prometheus' lookback. After that it counts as false.
A wait is over on the tick at its exact end. Each tick is evaluated once, in order.

Warm-up ends with the optimizer step that the rules name; only data-quality rules look at it. While one of those fires,
hints have no data.
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, NamedTuple

from rlscope.alerts.durations import write_duration, write_window
from rlscope.alerts.metrics import BY_NAME
from rlscope.alerts.series import HISTORY_NS, NOTHING, MetricReading, Series, Timeline, Whole
from rlscope.alerts.types import WHOLE_RUN, Rule, RuleSet
from rlscope.analysis.result import Alert
from rlscope.format import count, quantity, significant

_USUAL_SHARE: Final = 0.5
"""Least evidence of a rule: this share of a full window, and no more than the metric's own."""
Phase = Literal["inactive", "pending", "firing"]
LOOKBACK_NS: Final = 300_000_000_000
"""Prometheus' default lookback: an older sample is not current."""


@dataclass(frozen=True, slots=True)
class RuleState:
    """The state of a rule between two ticks."""

    phase: Phase = "inactive"
    held_since_ns: int | None = None
    """First tick since which the condition has been true; None while inactive."""
    fired_ns: int | None = None
    """Tick at which it started firing."""
    kept_since_ns: int | None = None
    """First tick at which the condition was false again, while `keep_firing_for` keeps it firing."""
    known_ns: int | None = None
    """Last tick with a value."""
    value: float | None = None
    """The value when the condition was last true."""
    worst_value: float | None = None
    evidence: float = 0
    worker_id: str | None = None
    cost_gpu_ns: int = 0
    billed_to: int = 0
    """The bucket up to which the cost has been added."""
    paid_to: int = 0
    """The bucket up to which earlier alerts counted the cost: no bucket counts twice."""


INACTIVE: Final = RuleState()


class Advance(NamedTuple):
    """The state after a tick, and the firing state that was resolved there."""

    state: RuleState
    resolved: RuleState | None


def advance(rule: Rule, state: RuleState, at_ns: int, reading: MetricReading) -> Advance:
    """Evaluate one tick. A reading without a value means no data."""
    if reading.value is None:
        if state.known_ns is not None and at_ns - state.known_ns <= LOOKBACK_NS:
            return Advance(state, None)
        return _not_holding(rule, state, at_ns)
    known = replace(state, known_ns=at_ns)
    if rule.holds(reading.value):
        return Advance(_holding(rule, known, at_ns, reading, reading.value), None)
    return _not_holding(rule, known, at_ns)


def _holding(rule: Rule, state: RuleState, at_ns: int, reading: MetricReading, value: float) -> RuleState:
    held_since_ns = at_ns if state.held_since_ns is None else state.held_since_ns
    fires = state.phase == "firing" or at_ns - held_since_ns >= rule.for_ns
    worse = max if rule.direction == "above" else min
    return replace(
        state,
        phase="firing" if fires else "pending",
        held_since_ns=held_since_ns,
        fired_ns=state.fired_ns if state.phase == "firing" else at_ns if fires else None,
        kept_since_ns=None,
        value=value,
        worst_value=value if state.worst_value is None else worse(value, state.worst_value),
        evidence=reading.evidence,
        worker_id=reading.worker_id,
    )


def _not_holding(rule: Rule, state: RuleState, at_ns: int) -> Advance:
    if state.phase == "firing" and rule.keep_firing_for_ns:
        kept_since_ns = at_ns if state.kept_since_ns is None else state.kept_since_ns
        if at_ns - kept_since_ns < rule.keep_firing_for_ns:
            return Advance(replace(state, kept_since_ns=kept_since_ns), None)
    paid_to = state.billed_to if state.phase == "firing" else state.paid_to
    ended = RuleState(known_ns=state.known_ns, billed_to=paid_to, paid_to=paid_to)
    return Advance(ended, state if state.phase == "firing" else None)


_WRITTEN_WITH_UNIT: Final = ("versions", "ratio", "s", "tokens_per_s")
_COUNTED_WITH_UNIT: Final = ("gpu_s", "s", "tokens")
"""Units that `quantity` knows by the suffix of a name."""


def written(rule: Rule, value: float | None) -> str:
    """A value of the rule's metric with its unit."""
    unit = BY_NAME[rule.metric].unit
    return quantity(f"value_{unit}", value) if unit in _WRITTEN_WITH_UNIT else significant(value)


def condition(rule: Rule) -> str:
    """The rule's condition as text: metric, window, comparison, threshold."""
    sign = ">" if rule.direction == "above" else "<"
    return f"{rule.metric} over {write_window(rule.window)} {sign} {written(rule, rule.threshold)}"


def annotations(rule: Rule, state: RuleState, run_id: str) -> dict[str, str]:
    """The rule's annotations with the current values filled in."""
    fields = {
        "rule": rule.name,
        "metric": rule.metric,
        "value": written(rule, state.value),
        "worst": written(rule, state.worst_value),
        "threshold": written(rule, rule.threshold),
        "window": write_window(rule.window),
        "for": write_duration(rule.for_ns),
        "evidence": count(state.evidence),
        "worker": state.worker_id or "no worker",
        "run": run_id,
    }
    return {key: text.format_map(fields) for key, text in rule.annotations.items()}


def evidence(rule: Rule, value: float) -> str:
    """The evidence behind a value, with its unit."""
    unit = BY_NAME[rule.metric].evidence
    if unit in _COUNTED_WITH_UNIT:
        return quantity(f"evidence_{unit}", value)
    return f"{count(value) if float(value).is_integer() else significant(value)} {unit}"


@dataclass(frozen=True, slots=True)
class Judged:
    """The result of evaluating a range of ticks."""

    states: Mapping[str, RuleState]
    """By rule name, after the last tick."""
    resolved: tuple[Alert, ...]
    """Alerts that were resolved, in the order of their end."""
    evaluated_ticks: Mapping[str, int]
    """By rule name: ticks with enough data to evaluate it."""


@dataclass(frozen=True, slots=True)
class _Bound:
    """A rule, its metric over this timeline, and the metric's cost by bucket."""

    rule: Rule
    series: Series
    price_ns: Whole | None


def judge_ticks(
    rules: RuleSet, timeline: Timeline, first_tick: int, last_tick: int, states: Mapping[str, RuleState], run_id: str
) -> Judged:
    """Evaluate ticks [first_tick, last_tick] in order.

    timeline must cover the longest window before first_tick, and everything up to last_tick. A rule over the whole run
    is evaluated at last_tick only.
    """
    made: dict[str, tuple[Series, Whole | None]] = {}
    bound_rules = [_bind(rule, timeline, made) for rule in rules.rules]
    order = sorted(bound_rules, key=lambda bound: bound.rule.kind != "data_quality")
    now = {bound.rule.name: states.get(bound.rule.name, INACTIVE) for bound in order}
    counts = dict.fromkeys(now, 0)
    resolved: list[Alert] = []
    for tick in range(first_tick, last_tick + 1):
        in_doubt = False
        for bound in order:
            rule, before = bound.rule, now[bound.rule.name]
            if rule.window == WHOLE_RUN and tick < last_tick:
                continue
            window = _window(rule, rules, timeline, tick)
            reading = NOTHING if in_doubt and rule.kind == "hint" else _reading(bound, window, timeline, tick)
            counts[rule.name] += reading.value is not None
            at_ns = timeline.ticks.at_ns(tick)
            after, ended = advance(rule, before, at_ns, reading)
            if reading.value is not None and window is not None and rule.holds(reading.value):
                after = _billed(bound, after, window, timeline.first_bucket)
            now[rule.name] = after
            in_doubt |= rule.kind == "data_quality" and after.phase == "firing"
            if ended is not None:
                resolved.append(alert_of(rule, ended, at_ns, run_id))
    return Judged(now, tuple(resolved), counts)


def alert_of(rule: Rule, state: RuleState, end_ns: int | None, run_id: str) -> Alert:
    """The alert of a firing state, or of one that fired until end_ns."""
    assert state.fired_ns is not None and state.held_since_ns is not None
    priced = BY_NAME[rule.metric].price_ns is not None
    return Alert(
        rule=rule.name,
        severity=rule.severity,
        labels=rule.labels,
        annotations=annotations(rule, state, run_id),
        value=state.value,
        start_ns=state.fired_ns,
        end_ns=end_ns,
        cost_gpu_s=state.cost_gpu_ns / 1e9 if priced else None,
        held_since_ns=state.held_since_ns,
        worst_value=state.worst_value,
        evidence=round(state.evidence),
    )


def with_summary(rule: Rule, alert: Alert) -> Alert:
    """Return the alert with a summary of its value, if the rule has no text of its own."""
    if {"summary", "description"} & alert.annotations.keys():
        return alert
    window, value, threshold = write_window(rule.window), written(rule, alert.value), written(rule, rule.threshold)
    summary = f"{rule.metric} over {window} is {value}, {rule.direction} {threshold}"
    return replace(alert, annotations={**alert.annotations, "summary": summary})


def firing(rules: RuleSet, states: Mapping[str, RuleState], run_id: str) -> tuple[Alert, ...]:
    """The firing alerts in these states, in the order of the rules."""
    return tuple(
        alert_of(rule, state, None, run_id)
        for rule in rules.rules
        if (state := states.get(rule.name, INACTIVE)).phase == "firing"
    )


def warm_up_end_ns(step_ends_ns: Sequence[int], warm_up_steps: int) -> int | None:
    """The end of warm-up, UTC epoch; None before it, and without warm-up. step_ends_ns is ascending."""
    return step_ends_ns[warm_up_steps - 1] if 0 < warm_up_steps <= len(step_ends_ns) else None


def _bind(rule: Rule, timeline: Timeline, made: dict[str, tuple[Series, Whole | None]]) -> _Bound:
    """A rule with its series; rules with the same metric share one."""
    if rule.metric not in made:
        metric = BY_NAME[rule.metric]
        price_ns = metric.price_ns(timeline) if metric.price_ns is not None else None
        made[rule.metric] = metric.series(timeline), price_ns
    return _Bound(rule, *made[rule.metric])


def _window(rule: Rule, rules: RuleSet, timeline: Timeline, tick: int) -> range | None:
    """The buckets in the rule's window; None if all of them are warm-up."""
    first = 0
    if rule.kind != "data_quality" and rules.warm_up_steps:
        if timeline.warm_up_end_ns is None or timeline.warm_up_end_ns >= timeline.ticks.at_ns(tick):
            return None
        first = timeline.ticks.tick_from(timeline.warm_up_end_ns)
    first = max(first, timeline.first_bucket, _earliest(rule, timeline, tick))
    return range(first, tick) if first < tick else None


def _earliest(rule: Rule, timeline: Timeline, tick: int) -> int:
    interval_ns = timeline.ticks.interval_ns
    if rule.window == WHOLE_RUN:
        return 0
    if rule.window.length_ns is not None:
        return tick + -rule.window.length_ns // interval_ns
    furthest = tick + -HISTORY_NS // interval_ns
    ended = bisect_left(timeline.step_ends_ns, timeline.ticks.at_ns(tick))
    before = ended - (rule.window.steps or 0) - 1
    return max(furthest, timeline.ticks.bucket_of(timeline.step_ends_ns[before])) if before >= 0 else furthest


def _reading(bound: _Bound, window: range | None, timeline: Timeline, tick: int) -> MetricReading:
    """The metric over the window; no value with too little evidence."""
    if window is None:
        return NOTHING
    reading = bound.series(window.start - timeline.first_bucket, window.stop - timeline.first_bucket)
    enough = reading.evidence >= _least_evidence(bound.rule, timeline, tick)
    return reading if enough else NOTHING._replace(evidence=reading.evidence)


def _least_evidence(rule: Rule, timeline: Timeline, tick: int) -> float:
    if rule.min_evidence is not None:
        return rule.min_evidence
    metric = BY_NAME[rule.metric]
    ticks, first = timeline.ticks, _earliest(rule, timeline, tick)
    from_ns, until_ns = ticks.at_ns(first), ticks.at_ns(tick)
    there = [each for each in timeline.parts.workers if each.start_ns < until_ns and each.last_ns > from_ns]
    per_s = metric.held_per_s(there)
    return min(metric.min_evidence, _USUAL_SHARE * (until_ns - from_ns) / 1e9 * per_s) if per_s else metric.min_evidence


def _billed(bound: _Bound, state: RuleState, window: range, first_bucket: int) -> RuleState:
    """Add the cost of the window's new buckets: each bucket counts once per rule."""
    if bound.price_ns is None:
        return state
    start = max(window.start, state.billed_to) - first_bucket
    more_ns = int(bound.price_ns[start : window.stop - first_bucket].sum())
    return replace(state, cost_gpu_ns=state.cost_gpu_ns + more_ns, billed_to=window.stop)
