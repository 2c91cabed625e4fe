"""A rule's condition in PromQL, over the metrics that the hooks export; or why there is none.

Each is the metric's own definition (`metrics`), as far as a scrape can know it: a level is averaged over scrapes, and
a wait counts once it has ended. One series a run comes out, or one a worker where the worker matters.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from rlscope.alerts import prometheus_names as names
from rlscope.alerts.metrics import SAMPLER_ROLES
from rlscope.alerts.parts import TRAINER_ROLES
from rlscope.alerts.rule import Rule
from rlscope.alerts.spans import write_duration

RUN: Final = names.RUN
# A worker that died leaves the scrapes; for so long it is still missed.
_MISSED_FOR: Final = "1h"
# As far as the usual time between steps looks back.
_HISTORY: Final = "6h"


@dataclass(frozen=True, slots=True)
class Expressed:
    """A condition that PromQL can hold."""

    condition: str
    value_is_metric: bool = True
    """Whether the value of the expression is the metric's own; a quantile is compared by the share beyond it."""


@dataclass(frozen=True, slots=True)
class Inexpressible:
    """A rule that only `check` and `watch` can hold."""

    reason: str


@dataclass(frozen=True, slots=True)
class _Value:
    """A value by run, and what it was counted from where a scrape knows that."""

    promql: str
    evidence: str | None = None


_Metric = Callable[[str], _Value]
"""From a window to the value over it."""


def express(rule: Rule) -> Expressed | Inexpressible:
    """The condition of a rule: its metric beyond its threshold, on enough evidence."""
    if rule.metric is None:
        return Inexpressible("it is a SELECT over the trace")
    if rule.metric in _REASONS:
        return Inexpressible(_REASONS[rule.metric])
    if rule.window.length_ns is None:
        return Inexpressible("its window is a number of steps, and Prometheus only knows time")
    if not math.isfinite(rule.threshold):
        return Inexpressible("nothing is beyond its threshold, or everything")
    window = write_duration(rule.window.length_ns)
    if rule.metric in _QUANTILES:
        return _quantile(rule, _QUANTILES[rule.metric], window)
    if rule.metric not in _METRICS:
        return Inexpressible("the hooks export nothing that it could be computed from")
    value = _METRICS[rule.metric](window)
    sign = ">" if rule.direction == "above" else "<"
    return Expressed(_with_evidence(f"{value.promql} {sign} {rule.threshold:.15g}", value.evidence, rule))


def _with_evidence(condition: str, evidence: str | None, rule: Rule) -> str:
    if evidence is None or not rule.min_evidence:
        return condition
    return f"({condition})\nand on ({RUN}) {evidence} >= {rule.min_evidence}"


def _quantile(rule: Rule, percent: int, window: str) -> Expressed | Inexpressible:
    """The smallest age that so many per cent of the tokens do not exceed, against a whole number of versions.

    It is above T exactly when more than the rest of the tokens are older than T, whatever their ages.
    """
    # Ages are whole: above 4.5 is above 4, and below 4.5 is 4 or less.
    last = math.floor(rule.threshold) if rule.direction == "above" else math.ceil(rule.threshold) - 1
    younger = [name for end, name in names.BUCKETS if end is not None and end <= last]
    if last >= 0 and last not in [end for end, _ in names.BUCKETS]:
        ends = ", ".join(str(end) for end, _ in names.BUCKETS if end is not None)
        return Inexpressible(f"the hooks count tokens in buckets of age that end at {ends}, and at no {last}")
    total = f"sum by ({RUN}) (increase({names.TRAINED}[{window}]))"
    older = f'sum by ({RUN}) (increase({names.TRAINED}{{{names.STALENESS}!~"{"|".join(younger)}"}}[{window}]))'
    share = f"({older} or 0 * {total}) / {total}"
    sign = ">" if rule.direction == "above" else "<="
    # 0.05 as a text, not 1 - 0.95.
    rest = f"{(100 - percent) / 100:.15g}"
    return Expressed(_with_evidence(f"{share} {sign} {rest}", total, rule), value_is_metric=False)


def _share(selectors: tuple[str, ...], roles: tuple[str, ...]) -> _Metric:
    """GPU-seconds in these states over the GPU-seconds that the roles own."""
    role = f'{names.ROLE}=~"{"|".join(roles)}"'

    def value(window: str) -> _Value:
        gpus = f"max by ({RUN}, {names.WORKER}) ({names.GPUS}{{{role}}})"
        rates = " or ".join(f"rate({names.TIME}{{{role}, {selector}}}[{window}])" for selector in selectors)
        lost = f"sum by ({RUN}) (({rates}) * on ({RUN}, {names.WORKER}) group_left () {gpus})"
        owned = f"sum by ({RUN}) ({gpus})"
        return _Value(f"({lost} or 0 * {owned}) / {owned}")

    return value


def _mean_age(window: str) -> _Value:
    tokens = f"sum by ({RUN}) (increase({names.TRAINED}[{window}]))"
    return _Value(f"sum by ({RUN}) (increase({names.TOKEN_AGE}[{window}])) / {tokens}", tokens)


def _over_cap(window: str) -> _Value:
    tokens = f"sum by ({RUN}) (increase({names.TRAINED}[{window}]))"
    return _Value(f"sum by ({RUN}) (increase({names.OVER_CAP}[{window}])) / {tokens}", tokens)


def _queue_depth(window: str) -> _Value:
    return _Value(f"max by ({RUN}) ({_depth_by_queue(window)})")


def _queue_used(window: str) -> _Value:
    capacity = f"max by ({RUN}, {names.QUEUE}) ({names.QUEUE_CAPACITY})"
    return _Value(f"max by ({RUN}) ({_depth_by_queue(window)} / {capacity})")


def _depth_by_queue(window: str) -> str:
    return f"avg by ({RUN}, {names.QUEUE}) (avg_over_time({names.QUEUE_DEPTH}[{window}]))"


def _kv_used(window: str) -> _Value:
    who = f"and on ({RUN}, {names.WORKER})"
    used = f"sum by ({RUN}) (avg_over_time({names.KV_USED}[{window}]) {who} {names.KV_CAPACITY})"
    return _Value(f"{used} / sum by ({RUN}) ({names.KV_CAPACITY} {who} {names.KV_USED})")


def _per_engine(metric: str) -> _Metric:
    return lambda window: _Value(f"avg by ({RUN}) (avg_over_time({metric}[{window}]))")


def _trained_rate(window: str) -> _Value:
    return _Value(f"sum by ({RUN}) (rate({names.TRAINED}[{window}]))", _steps(window))


def _step_period(window: str) -> _Value:
    return _Value(f"1 / max by ({RUN}) (rate({names.STEPS}[{window}]))", _steps(window))


def _steps(window: str) -> str:
    return f"max by ({RUN}) (increase({names.STEPS}[{window}]))"


def _steps_overdue(_: str) -> _Value:
    # By the trainers' own clock: the time since the last scrape is not the trainers' delay.
    heard = f'max by ({RUN}) ({names.HEARTBEAT}{{{names.ROLE}=~"{"|".join(TRAINER_ROLES)}"}})'
    since = f"({heard} - max by ({RUN}) ({names.LAST_STEP}))"
    intervals = f"max by ({RUN}) (increase({names.STEPS}[{_HISTORY}]))"
    return _Value(f"{since} / max by ({RUN}) ({names.STEP_PERIOD})", intervals)


def _silence(_: str) -> _Value:
    who = f"{RUN}, {names.WORKER}"
    last = f"max by ({who}) (last_over_time({names.HEARTBEAT}[{_MISSED_FOR}]))"
    stopped = f"last_over_time({names.STOPPED}[{_MISSED_FOR}])"
    # A run of which nobody is scraped has ended: it is not its workers that fell silent.
    return _Value(f"((time() - {last} unless on ({who}) {stopped}) and on ({RUN}) {names.HEARTBEAT})")


def _dropped(_: str) -> _Value:
    return _Value(f"sum by ({RUN}) ({names.DROPPED})")


def _dropped_ratio(_: str) -> _Value:
    dropped = f"sum by ({RUN}) ({names.DROPPED})"
    return _Value(f"{dropped} / ({dropped} + sum by ({RUN}) ({names.WRITTEN}))")


_WAIT: Final = f'{names.STATE}="wait"'
_MOVES: Final = (f'{names.STATE}="weight_update"', f'{_WAIT}, {names.REASON}="weights"')
_EVERYONE: Final = ("trainer", "sampler", "colocated")

_METRICS: Final[Mapping[str, _Metric]] = {
    "staleness.tokens.mean": _mean_age,
    "staleness.over_cap_ratio": _over_cap,
    "idle.trainer_ratio": _share((_WAIT,), TRAINER_ROLES),
    "idle.sampler_ratio": _share((_WAIT,), SAMPLER_ROLES),
    "weight_update.gpu_ratio": _share(_MOVES, _EVERYONE),
    "queue.depth": _queue_depth,
    "queue.used_ratio": _queue_used,
    "kv.used_ratio": _kv_used,
    "running.per_engine": _per_engine(names.RUNNING),
    "waiting.requests": _per_engine(names.WAITING),
    "throughput.trained_tokens_per_s": _trained_rate,
    "step.period_s": _step_period,
    "step.overdue_periods": _steps_overdue,
    "worker.silent_s": _silence,
    "rows.dropped": _dropped,
    "rows.dropped_ratio": _dropped_ratio,
}
_QUANTILES: Final[Mapping[str, int]] = {
    "staleness.tokens.p50": 50,
    "staleness.tokens.p95": 95,
    "staleness.tokens.p99": 99,
    "staleness.tokens.max": 100,
}
_REASONS: Final[Mapping[str, str]] = {
    "staleness.samples.max": "the trainer's hook knows the ages of tokens, not of samples",
    "unattributed_ratio": "what no hook explains is what is left of the whole ledger",
    "dropped_stale_ratio": "it counts tokens, and the queue's hook does not know how long samples are",
    "throughput.residual_ratio": "the model predicts from the whole trace",
    "weight_update.duration_s": "it lasts from one worker's publication to another one's application",
    "weight_update.overdue_periods": "an engine knows its own updates, the run's are those of whichever was first",
}
