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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from rlscope.alerts.durations import write_duration, write_window
from rlscope.alerts.metrics import BY_NAME
from rlscope.alerts.series import HISTORY_NS, NOTHING, MetricReading, Series, Timeline
from rlscope.alerts.types import WHOLE_RUN, Rule, RuleSet
from rlscope.analysis.result import Alert
from rlscope.format import count, quantity, significant

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


INACTIVE: Final = RuleState()


def advance(rule: Rule, state: RuleState, at_ns: int, reading: MetricReading) -> RuleState:
    """Return the state after a tick. A reading without a value means no data."""
    if reading.value is None:
        is_current = state.known_ns is not None and at_ns - state.known_ns <= LOOKBACK_NS
        return state if is_current else _not_holding(rule, state, at_ns)
    known = replace(state, known_ns=at_ns)
    if rule.holds(reading.value):
        return _holding(rule, known, at_ns, reading, reading.value)
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


def _not_holding(rule: Rule, state: RuleState, at_ns: int) -> RuleState:
    if state.phase == "firing" and rule.keep_firing_for_ns:
        kept_since_ns = at_ns if state.kept_since_ns is None else state.kept_since_ns
        if at_ns - kept_since_ns < rule.keep_firing_for_ns:
            return replace(state, kept_since_ns=kept_since_ns)
    return RuleState(known_ns=state.known_ns)


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


_FIELDS: Final[Mapping[str, Callable[[Rule, RuleState], str]]] = {
    "rule": lambda rule, _: rule.name,
    "metric": lambda rule, _: rule.metric,
    "value": lambda rule, state: written(rule, state.value),
    "worst": lambda rule, state: written(rule, state.worst_value),
    "threshold": lambda rule, _: written(rule, rule.threshold),
    "window": lambda rule, _: write_window(rule.window),
    "for": lambda rule, _: write_duration(rule.for_ns),
    "evidence": lambda _, state: count(state.evidence),
    "worker": lambda _, state: state.worker_id or "no worker",
}
ANNOTATION_FIELDS: Final = (*_FIELDS, "run")
"""Fields that an annotation may use in braces."""


def annotations(rule: Rule, state: RuleState, run_id: str) -> dict[str, str]:
    """The rule's annotations with the current values filled in."""
    fields = {**{name: of(rule, state) for name, of in _FIELDS.items()}, "run": run_id}
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


def judge_ticks(
    rules: RuleSet, timeline: Timeline, first_tick: int, last_tick: int, states: Mapping[str, RuleState], run_id: str
) -> Judged:
    """Evaluate ticks [first_tick, last_tick] in order.

    timeline must cover the longest window before first_tick, and everything up to last_tick. A rule over the whole run
    is evaluated at last_tick only.
    """
    series = {name: BY_NAME[name].series(timeline) for name in {rule.metric for rule in rules.rules}}
    order = sorted(rules.rules, key=lambda rule: rule.kind != "data_quality")
    now = {rule.name: states.get(rule.name, INACTIVE) for rule in order}
    counts = dict.fromkeys(now, 0)
    resolved: list[Alert] = []
    for tick in range(first_tick, last_tick + 1):
        in_doubt = False
        for rule in order:
            if rule.window == WHOLE_RUN and tick < last_tick:
                continue
            window = None if in_doubt and rule.kind == "hint" else _window(rule, rules, timeline, tick)
            reading = NOTHING if window is None else _reading(rule, series[rule.metric], window, timeline)
            counts[rule.name] += reading.value is not None
            before, at_ns = now[rule.name], timeline.ticks.at_ns(tick)
            after = now[rule.name] = advance(rule, before, at_ns, reading)
            in_doubt |= rule.kind == "data_quality" and after.phase == "firing"
            if before.phase == "firing" != after.phase:
                resolved.append(alert_of(rule, before, at_ns, run_id))
    return Judged(now, tuple(resolved), counts)


def alert_of(rule: Rule, state: RuleState, end_ns: int | None, run_id: str) -> Alert:
    """The alert of a firing state, or of one that fired until end_ns."""
    assert state.fired_ns is not None and state.held_since_ns is not None
    return Alert(
        rule=rule.name,
        severity=rule.severity,
        labels=rule.labels,
        annotations=annotations(rule, state, run_id),
        value=state.value,
        start_ns=state.fired_ns,
        end_ns=end_ns,
        held_since_ns=state.held_since_ns,
        worst_value=state.worst_value,
        evidence=round(state.evidence),
    )


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


def _reading(rule: Rule, series: Series, window: range, timeline: Timeline) -> MetricReading:
    """The metric over the window; no value with too little evidence."""
    reading = series(window.start - timeline.first_bucket, window.stop - timeline.first_bucket)
    least = BY_NAME[rule.metric].min_evidence if rule.min_evidence is None else rule.min_evidence
    return reading if reading.evidence >= least else NOTHING._replace(evidence=reading.evidence)
