"""Writes alert rules as a Prometheus rule file, and a Grafana dashboard, over the metrics that the hooks export.

Names, thresholds and texts stay the same. Each PromQL expression follows the metric's definition (`metrics`) within
the limits of scrapes: a level is averaged over scrapes, and a wait counts once it has ended. Warm-up and the
suppression of hints are part of the expression. A rule that PromQL cannot express becomes a comment with the reason.
There are no costs, no late rows, and no minimum evidence except for tokens and steps.

Metric names are those of `rlscope_otel.metrics` as an OpenTelemetry exporter translates them (dots become
underscores, with the unit and `_total` appended). A test compares them with a scrape of the hooks. `grafana.json` is
the dashboard as Grafana imports it (Dashboards, New, Import): it asks for a Prometheus data source and shows one run.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.resources import files
from string import Formatter
from typing import Any, Final

import yaml

from rlscope.alerts.durations import write_duration, write_window
from rlscope.alerts.evaluate import written
from rlscope.alerts.metrics import BY_NAME
from rlscope.alerts.types import Rule, RuleSet
from rlscope.analysis.ledger import AUXILIARY_ROLE, SAMPLER_ROLES, TRAINER_ROLES

RUN: Final = "rlscope_run_id"
WORKER: Final = "rlscope_worker_id"
ROLE: Final = "rlscope_role"
STATE: Final = "rlscope_state"
REASON: Final = "rlscope_wait_reason"
QUEUE: Final = "rlscope_queue"
STALENESS: Final = "rlscope_staleness"

RUNNING: Final = "rlscope_engine_running"
WAITING: Final = "rlscope_engine_waiting"
KV_USED: Final = "rlscope_engine_kv_used"
KV_CAPACITY: Final = "rlscope_engine_kv_capacity"
QUEUE_DEPTH: Final = "rlscope_queue_depth"
QUEUE_CAPACITY: Final = "rlscope_queue_capacity"
STEPS: Final = "rlscope_train_steps_total"
LAST_STEP: Final = "rlscope_train_last_step_seconds"
STEP_PERIOD: Final = "rlscope_train_period_seconds"
TRAINED: Final = "rlscope_train_staleness_total"
TOKEN_AGE: Final = "rlscope_train_token_age_total"
OVER_CAP: Final = "rlscope_train_over_cap_total"
TIME: Final = "rlscope_worker_time_seconds_total"
GPUS: Final = "rlscope_worker_gpus"
HEARTBEAT: Final = "rlscope_worker_heartbeat_seconds"
STOPPED: Final = "rlscope_worker_stopped_seconds"
DROPPED: Final = "rlscope_rows_dropped_total"
WRITTEN: Final = "rlscope_rows_written_total"

BUCKETS: Final = ((0, "0"), (1, "1"), (2, "2"), (4, "3-4"), (8, "5-8"), (16, "9-16"), (32, "17-32"), (None, "33+"))
"""Staleness buckets in versions: upper end (inclusive) and name; the last one has no end."""


# A dead worker disappears from the scrapes; it counts as silent for this long.
_MISSED_FOR: Final = "1h"
# How far back the usual step period reaches.
_HISTORY: Final = "6h"


@dataclass(frozen=True, slots=True)
class Expressed:
    """A condition in PromQL."""

    condition: str
    value_is_metric: bool = True
    """Whether the expression has the metric's value. A quantile is compared by the share of tokens beyond it."""


@dataclass(frozen=True, slots=True)
class Inexpressible:
    """A rule that only `check` and `watch` can evaluate."""

    reason: str


@dataclass(frozen=True, slots=True)
class _Value:
    """A value by run, and its evidence if a scrape knows it."""

    promql: str
    evidence: str | None = None


_Metric = Callable[[str], _Value]
"""From a window to the value over it."""


def express(rule: Rule) -> Expressed | Inexpressible:
    """The rule's condition: its metric beyond the threshold, with enough evidence."""
    if rule.metric is None:
        return Inexpressible("it is SQL over the trace")
    if rule.metric in _REASONS:
        return Inexpressible(_REASONS[rule.metric])
    if rule.window.length_ns is None:
        return Inexpressible("its window is a number of steps; Prometheus windows are times")
    window = write_duration(rule.window.length_ns)
    if rule.metric in _QUANTILES:
        return _quantile(rule, _QUANTILES[rule.metric], window)
    if rule.metric not in _METRICS:
        return Inexpressible("the hooks export no metric to compute it from")
    value = _METRICS[rule.metric](window)
    sign = ">" if rule.direction == "above" else "<"
    return Expressed(_with_evidence(f"{value.promql} {sign} {rule.threshold:.15g}", value.evidence, rule))


def _with_evidence(condition: str, evidence: str | None, rule: Rule) -> str:
    if evidence is None or not rule.min_evidence:
        return condition
    return f"({condition})\nand on ({RUN}) {evidence} >= {rule.min_evidence}"


def _quantile(rule: Rule, percent: int, window: str) -> Expressed | Inexpressible:
    """A percentile of staleness, compared through the share of tokens beyond the threshold.

    The p95 is above T exactly if more than 5% of the tokens are staler than T.
    """
    # Staleness is an integer: above 4.5 means above 4, and below 4.5 means 4 or less.
    last = math.floor(rule.threshold) if rule.direction == "above" else math.ceil(rule.threshold) - 1
    younger = [name for end, name in BUCKETS if end is not None and end <= last]
    if last >= 0 and last not in [end for end, _ in BUCKETS]:
        ends = ", ".join(str(end) for end, _ in BUCKETS if end is not None)
        return Inexpressible(f"the hooks count tokens in staleness buckets that end at {ends}, not at {last}")
    total = f"sum by ({RUN}) (increase({TRAINED}[{window}]))"
    older = f'sum by ({RUN}) (increase({TRAINED}{{{STALENESS}!~"{"|".join(younger)}"}}[{window}]))'
    share = f"({older} or 0 * {total}) / {total}"
    sign = ">" if rule.direction == "above" else "<="
    # 0.05 as a text, not 1 - 0.95.
    rest = f"{(100 - percent) / 100:.15g}"
    return Expressed(_with_evidence(f"{share} {sign} {rest}", total, rule), value_is_metric=False)


def _share(selectors: tuple[str, ...], roles: tuple[str, ...]) -> _Metric:
    """GPU-seconds in these states over all GPU-seconds of the roles."""
    role = f'{ROLE}=~"{"|".join(roles)}"'

    def value(window: str) -> _Value:
        gpus = f"max by ({RUN}, {WORKER}) ({GPUS}{{{role}}})"
        rates = " or ".join(f"rate({TIME}{{{role}, {selector}}}[{window}])" for selector in selectors)
        lost = f"sum by ({RUN}) (({rates}) * on ({RUN}, {WORKER}) group_left () {gpus})"
        owned = f"sum by ({RUN}) ({gpus})"
        return _Value(f"({lost} or 0 * {owned}) / {owned}")

    return value


def _per_token(metric: str) -> _Metric:
    """A counter over the trained tokens, which are its evidence."""

    def value(window: str) -> _Value:
        tokens = f"sum by ({RUN}) (increase({TRAINED}[{window}]))"
        return _Value(f"sum by ({RUN}) (increase({metric}[{window}])) / {tokens}", tokens)

    return value


def _queue_depth(window: str) -> _Value:
    return _Value(f"max by ({RUN}) ({_depth_by_queue(window)})")


def _queue_used(window: str) -> _Value:
    capacity = f"max by ({RUN}, {QUEUE}) ({QUEUE_CAPACITY})"
    return _Value(f"max by ({RUN}) ({_depth_by_queue(window)} / {capacity})")


def _depth_by_queue(window: str) -> str:
    return f"avg by ({RUN}, {QUEUE}) (avg_over_time({QUEUE_DEPTH}[{window}]))"


_OF_THE_POLICY: Final = f'{{{ROLE}!="{AUXILIARY_ROLE}"}}'
"""Selects the engines that sample: a judge may have one too."""


def _kv_used(window: str) -> _Value:
    who = f"and on ({RUN}, {WORKER})"
    capacity = f"{KV_CAPACITY}{_OF_THE_POLICY}"
    used = f"sum by ({RUN}) (avg_over_time({KV_USED}[{window}]) {who} {capacity})"
    return _Value(f"{used} / sum by ({RUN}) ({capacity} {who} {KV_USED})")


def _per_engine(metric: str) -> _Metric:
    return lambda window: _Value(f"avg by ({RUN}) (avg_over_time({metric}{_OF_THE_POLICY}[{window}]))")


def _trained_rate(window: str) -> _Value:
    return _Value(f"sum by ({RUN}) (rate({TRAINED}[{window}]))", _steps(window))


def _step_period(window: str) -> _Value:
    return _Value(f"1 / max by ({RUN}) (rate({STEPS}[{window}]))", _steps(window))


def _steps(window: str) -> str:
    return f"max by ({RUN}) (increase({STEPS}[{window}]))"


def _steps_overdue(_: str) -> _Value:
    # By the trainers' own clock, so that the time since the last scrape does not count.
    heard = f'max by ({RUN}) ({HEARTBEAT}{{{ROLE}=~"{"|".join(TRAINER_ROLES)}"}})'
    since = f"({heard} - max by ({RUN}) ({LAST_STEP}))"
    intervals = f"max by ({RUN}) (increase({STEPS}[{_HISTORY}]))"
    return _Value(f"{since} / max by ({RUN}) ({STEP_PERIOD})", intervals)


def _silence(_: str) -> _Value:
    who = f"{RUN}, {WORKER}"
    last = f"max by ({who}) (last_over_time({HEARTBEAT}[{_MISSED_FOR}]))"
    stopped = f"last_over_time({STOPPED}[{_MISSED_FOR}])"
    # A run without any scraped worker has ended; its workers did not fall silent.
    return _Value(f"((time() - {last} unless on ({who}) {stopped}) and on ({RUN}) {HEARTBEAT})")


def _dropped(_: str) -> _Value:
    return _Value(f"sum by ({RUN}) ({DROPPED})")


def _dropped_ratio(_: str) -> _Value:
    dropped = f"sum by ({RUN}) ({DROPPED})"
    return _Value(f"{dropped} / ({dropped} + sum by ({RUN}) ({WRITTEN}))")


_WAIT: Final = f'{STATE}="wait"'
_MOVES: Final = (f'{STATE}="weight_update"', f'{_WAIT}, {REASON}="weights"')
_EVERYONE: Final = ("trainer", "sampler", "colocated")

_METRICS: Final[Mapping[str, _Metric]] = {
    "staleness.tokens.mean": _per_token(TOKEN_AGE),
    "staleness.over_cap_ratio": _per_token(OVER_CAP),
    "idle.trainer_ratio": _share((_WAIT,), TRAINER_ROLES),
    "idle.sampler_ratio": _share((_WAIT,), SAMPLER_ROLES),
    "weight_update.gpu_ratio": _share(_MOVES, _EVERYONE),
    "queue.depth": _queue_depth,
    "queue.used_ratio": _queue_used,
    "kv.used_ratio": _kv_used,
    "running.per_engine": _per_engine(RUNNING),
    "waiting.requests": _per_engine(WAITING),
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
    "staleness.samples.max": "the trainer's hook exports the staleness of tokens, not of samples",
    "idle.longest_s": "the hooks export how long a worker waited in all, not for how long without a break",
    "unattributed_ratio": "unattributed time is the remainder of the whole ledger",
    "dropped_stale_ratio": "it counts tokens, and the queue's hook does not know the length of a sample",
    "rows.missing": "only the files of a whole run show it",
    "throughput.residual_ratio": "the model needs the whole trace",
    "throughput.steady_tokens_per_s": "the steady state is known after the run",
    "weight_update.duration_s": "it runs from one worker's publication to another worker's update",
    "weight_update.overdue_periods": "an engine only knows its own updates, not which engine was first",
}


_HEAD: Final = """\
# Generated by `rlscope rules --prometheus`. Needs the metrics of rlscope-otel, scraped or pushed from every worker.
"""
_HUMANE: Final = {
    "ratio": "{{ $value | humanizePercentage }}",
    "s": "{{ $value | humanizeDuration }}",
    "versions": '{{ $value | printf "%.3g" }} versions',
    "tokens_per_s": "{{ $value | humanize }} tokens/s",
}
_PLAIN: Final = '{{ $value | printf "%.4g" }}'


def dashboard() -> str:
    """Return the Grafana dashboard of the metrics that the hooks export, as JSON."""
    return (files("rlscope.alerts") / "grafana.json").read_text(encoding="utf-8")


def as_rule_file(rules: RuleSet) -> str:
    """The text of a rule file for Prometheus 2.42 or newer (for `keep_firing_for`)."""
    expressed = [(rule, express(rule)) for rule in rules.rules]
    alarms = [rule.name for rule, how in expressed if rule.kind == "data_quality" and isinstance(how, Expressed)]
    entries = [_entry(rule, how, rules, alarms) for rule, how in expressed if isinstance(how, Expressed)]
    group = {"name": "rlscope", "interval": write_duration(rules.interval_ns), "rules": entries}
    body = yaml.dump({"groups": [group]}, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=10_000)
    left = [_comment(rule, how) for rule, how in expressed if isinstance(how, Inexpressible)]
    return _HEAD + body + "".join(left)


class _Dumper(yaml.SafeDumper):
    """Writes multi-line texts as block scalars."""


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)


def _entry(rule: Rule, how: Expressed, rules: RuleSet, alarms: list[str]) -> dict[str, Any]:
    entry: dict[str, Any] = {"alert": rule.name, "expr": _expression(rule, how, rules, alarms)}
    if rule.for_ns:
        entry["for"] = write_duration(rule.for_ns)
    if rule.keep_firing_for_ns:
        entry["keep_firing_for"] = write_duration(rule.keep_firing_for_ns)
    entry["labels"] = dict(rule.labels)
    if rule.annotations:
        entry["annotations"] = {key: _annotation(rule, how, text) for key, text in rule.annotations.items()}
    return entry


def _expression(rule: Rule, how: Expressed, rules: RuleSet, alarms: list[str]) -> str:
    expression = how.condition
    if rule.kind != "data_quality" and rules.warm_up_steps:
        started = f"max by ({RUN}) ({STEPS}) >= {rules.warm_up_steps}"
        expression = f"({expression})\nand on ({RUN}) {started}"
    if rule.kind == "hint" and alarms:
        held_back = f'ALERTS{{alertstate="firing", alertname=~"{"|".join(map(_escaped, alarms))}"}}'
        expression = f"({expression})\nunless on ({RUN}) {held_back}"
    return expression


def _escaped(name: str) -> str:
    """A name inside a regular expression; special characters become `.`."""
    return "".join(char if char.isalnum() or char in "_- " else "." for char in name)


def _annotation(rule: Rule, how: Expressed, text: str) -> str:
    """An annotation with our fields as Prometheus templates; other braces are escaped."""
    filled: list[str] = []
    for literal, field, _, _ in Formatter().parse(text):
        filled.append(literal.replace("{", '{{ "{" }}'))
        if field is not None:
            filled.append(_field(rule, how, field))
    return "".join(filled)


def _field(rule: Rule, how: Expressed, field: str) -> str:
    threshold = written(rule, rule.threshold)
    value = _PLAIN
    if not how.value_is_metric:
        value = f"{'more' if rule.direction == 'above' else 'less'} than {threshold}"
    elif rule.metric is not None:
        value = _HUMANE.get(BY_NAME[rule.metric].unit, _PLAIN)
    fields = {
        "rule": rule.name,
        "metric": rule.metric or "",
        "value": value,
        "worst": value,
        "threshold": threshold,
        "window": write_window(rule.window),
        "for": write_duration(rule.for_ns),
        "evidence": "the scraped data",
        "worker": f"{{{{ $labels.{WORKER} }}}}",
        "run": f"{{{{ $labels.{RUN} }}}}",
    }
    return fields[field]


def _comment(rule: Rule, how: Inexpressible) -> str:
    subject = f"{rule.name} ({rule.metric or 'SQL rule'})"
    text = f"{subject}: {how.reason}. `rlscope watch` evaluates it."
    return "# Not expressible in PromQL: " + " ".join(text.split()) + "\n"
