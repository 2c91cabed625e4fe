"""From a metric's values at ticks to stretches in which a rule fires, with Prometheus' `for` and `keep_firing_for`.

At each tick, in the order of Prometheus' alerting rules (rules/alerting.go, AlertingRule.Eval):
- the condition holds: an inactive rule becomes pending; a pending one fires once it has held `for` so long, which with
  `for = 0` is at once; a firing one forgets that it was about to be resolved;
- it does not hold: a pending rule becomes inactive; a firing one is resolved, or goes on firing until `keep_firing_for`
  has passed since the first tick at which it did not hold;
- there is no value: for LOOKBACK_NS, what Prometheus takes a sample for current, nothing changes: what is pending does
  not come to fire, what fires is not resolved. After that it counts as not holding.
Both waits are over on the tick that stands exactly on them. Pure; a tick is evaluated once, in order.
"""

from dataclasses import dataclass, replace
from typing import Final, Literal, NamedTuple

from rlscope.alerts.readings import Reading
from rlscope.alerts.rule import Rule

Phase = Literal["inactive", "pending", "firing"]
LOOKBACK_NS: Final = 300_000_000_000
"""Prometheus' default lookback: a sample older than this says nothing of now."""


@dataclass(frozen=True, slots=True)
class RuleState:
    """What a rule remembers from one tick to the next."""

    phase: Phase = "inactive"
    held_since_ns: int | None = None
    """First tick of the present stretch at which the condition held; None while inactive."""
    fired_ns: int | None = None
    """Tick at which it began to fire."""
    kept_since_ns: int | None = None
    """First tick at which it did not hold any more, while it is kept firing."""
    known_ns: int | None = None
    """Last tick with a value."""
    value: float | None = None
    """The value when the condition last held."""
    worst_value: float | None = None
    evidence: float = 0
    worker_id: str | None = None
    cost_gpu_ns: int = 0
    billed_to: int = 0
    """The bucket up to which the cost was added up."""
    paid_to: int = 0
    """The bucket up to which earlier firings were: none is paid for twice."""


INACTIVE: Final = RuleState()


class Advance(NamedTuple):
    """The state after a tick, and the firing that ended there."""

    state: RuleState
    resolved: RuleState | None


def advance(rule: Rule, state: RuleState, at_ns: int, reading: Reading) -> Advance:
    """Evaluate one tick. A reading without a value is no data."""
    if reading.value is None:
        if state.known_ns is not None and at_ns - state.known_ns <= LOOKBACK_NS:
            return Advance(state, None)
        return _not_holding(rule, state, at_ns)
    known = replace(state, known_ns=at_ns)
    if rule.holds(reading.value):
        return Advance(_holding(rule, known, at_ns, reading, reading.value), None)
    return _not_holding(rule, known, at_ns)


def _holding(rule: Rule, state: RuleState, at_ns: int, reading: Reading, value: float) -> RuleState:
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
