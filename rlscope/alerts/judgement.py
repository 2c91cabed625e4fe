"""Holds a stretch of a run to rules, tick by tick: the same code for a run that ended and one that goes on. Pure.

Warm-up is what comes before the end of the optimizer step that the rules name; only rules about data quality look at
it. While one of those fires, hints are held back: they have no data.
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import polars as pl

from rlscope.alerts.alert import Alert
from rlscope.alerts.evaluation import INACTIVE, RuleState, advance
from rlscope.alerts.metrics import BY_NAME
from rlscope.alerts.readings import HISTORY_NS, NOTHING, OwnValues, Reading, Series, Whole
from rlscope.alerts.rule import WHOLE_RUN, Rule, RuleSet
from rlscope.alerts.timeline import Timeline
from rlscope.alerts.wording import annotations


@dataclass(frozen=True, slots=True)
class Judged:
    """What came of a stretch of ticks."""

    states: Mapping[str, RuleState]
    """Of every rule by name, after the last tick."""
    resolved: tuple[Alert, ...]
    """Stretches that ended, in the order in which they did."""
    judged_ticks: Mapping[str, int]
    """By rule: ticks at which it had enough to go by."""


@dataclass(frozen=True, slots=True)
class _Bound:
    """A rule, its metric over this timeline, and what that costs by bucket."""

    rule: Rule
    series: Series
    price_ns: Whole | None


def judge_ticks(
    rules: RuleSet, timeline: Timeline, first_tick: int, last_tick: int, states: Mapping[str, RuleState], run_id: str
) -> Judged:
    """Evaluate ticks [first_tick, last_tick] in order.

    timeline must reach back from first_tick as far as the longest window, and up to last_tick. A rule over the whole
    run is evaluated at last_tick only.
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
            reading = NOTHING if in_doubt and rule.kind == "hint" else _reading(bound, window, timeline.first_bucket)
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
    """The alert of a state that fires, or fired until end_ns."""
    assert state.fired_ns is not None and state.held_since_ns is not None
    priced = rule.metric is not None and BY_NAME[rule.metric].price_ns is not None
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
        evidence=int(state.evidence),
    )


def firing(rules: RuleSet, states: Mapping[str, RuleState], run_id: str) -> tuple[Alert, ...]:
    """The alerts that fire in these states, in the order of the rules."""
    return tuple(
        alert_of(rule, state, None, run_id)
        for rule in rules.rules
        if (state := states.get(rule.name, INACTIVE)).phase == "firing"
    )


def warm_up_end_ns(step_ends_ns: Sequence[int], warm_up_steps: int) -> int | None:
    """The end of that many optimizer steps, UTC epoch; None before, and where there is no warm-up. They rise."""
    return step_ends_ns[warm_up_steps - 1] if 0 < warm_up_steps <= len(step_ends_ns) else None


def _bind(rule: Rule, timeline: Timeline, made: dict[str, tuple[Series, Whole | None]]) -> _Bound:
    """A rule with its series; rules that share a metric share what was made of it."""
    if rule.metric is None:
        return _Bound(rule, _own_values(timeline.parts.own.get(rule.name), rule, timeline.first_bucket), None)
    if rule.metric not in made:
        metric = BY_NAME[rule.metric]
        price_ns = metric.price_ns(timeline) if metric.price_ns is not None else None
        made[rule.metric] = metric.series(timeline), price_ns
    return _Bound(rule, *made[rule.metric])


def _own_values(frame: pl.DataFrame | None, rule: Rule, first_bucket: int) -> Series:
    values: dict[int, list[float]] = {}
    if frame is not None:
        for bucket, value in frame.sort("at_ns").select("bucket", "value").iter_rows():
            values.setdefault(bucket - first_bucket, []).append(value)
    return OwnValues(values, rule.reduction)


def _window(rule: Rule, rules: RuleSet, timeline: Timeline, tick: int) -> range | None:
    """The buckets that a rule looks at; None where warm-up leaves none."""
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


def _reading(bound: _Bound, window: range | None, first_bucket: int) -> Reading:
    """What the metric says of the window, or nothing where that is too little to go by."""
    if window is None:
        return NOTHING
    reading = bound.series.reading(window.start - first_bucket, window.stop - first_bucket)
    return reading if reading.evidence >= bound.rule.min_evidence else NOTHING._replace(evidence=reading.evidence)


def _billed(bound: _Bound, state: RuleState, window: range, first_bucket: int) -> RuleState:
    """Add the buckets of the window that were not added before: each bucket is paid for once by a rule."""
    if bound.price_ns is None:
        return state
    start = max(window.start, state.billed_to) - first_bucket
    more_ns = int(bound.price_ns[start : window.stop - first_bucket].sum())
    return replace(state, cost_gpu_ns=state.cost_gpu_ns + more_ns, billed_to=window.stop)
