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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from string import Formatter
from typing import Any, Final, NamedTuple

import yaml

from rlscope.alerts.durations import write_duration, write_window
from rlscope.alerts.evaluate import written
from rlscope.alerts.metrics import BY_NAME
from rlscope.alerts.types import Rule, RuleSet
from rlscope.analysis.ledger import AUXILIARY_ROLE, SAMPLER_ROLES, TRAINER_ROLES

BUCKETS: Final = ((0, "0"), (1, "1"), (2, "2"), (4, "3-4"), (8, "5-8"), (16, "9-16"), (32, "17-32"), (None, "33+"))
"""Staleness buckets in versions: upper end (inclusive) and name; the last one has no end."""


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


class _Value(NamedTuple):
    """A value by run over `[window]`, and its evidence if a scrape knows it."""

    promql: str
    evidence: str | None = None


def express(rule: Rule) -> Expressed | Inexpressible:
    """The rule's condition: its metric beyond the threshold, with enough evidence."""
    if rule.metric is None:
        return Inexpressible("it is SQL over the trace")
    if rule.metric in _REASONS:
        return Inexpressible(_REASONS[rule.metric])
    if rule.window.length_ns is None:
        return Inexpressible("its window is a number of steps; Prometheus windows are times")
    if rule.metric in _QUANTILES:
        return _quantile(rule, _QUANTILES[rule.metric])
    if rule.metric not in _VALUES:
        return Inexpressible("the hooks export no metric to compute it from")
    value = _VALUES[rule.metric]
    sign = ">" if rule.direction == "above" else "<"
    return Expressed(_over_window(f"{value.promql} {sign} {rule.threshold:.15g}", value.evidence, rule))


def _over_window(condition: str, evidence: str | None, rule: Rule) -> str:
    """Return a condition with enough evidence, over the window of the rule."""
    if evidence is not None and rule.min_evidence:
        condition = f"({condition})\nand on (rlscope_run_id) {evidence} >= {rule.min_evidence}"
    return condition.replace("[window]", f"[{write_duration(rule.window.length_ns or 0)}]")


def _quantile(rule: Rule, percent: int) -> Expressed | Inexpressible:
    """A percentile of staleness, compared through the share of tokens beyond the threshold.

    The p95 is above T exactly if more than 5% of the tokens are staler than T.
    """
    # Staleness is an integer: above 4.5 means above 4, and below 4.5 means 4 or less.
    last = math.floor(rule.threshold) if rule.direction == "above" else math.ceil(rule.threshold) - 1
    younger = [name for end, name in BUCKETS if end is not None and end <= last]
    if last >= 0 and last not in [end for end, _ in BUCKETS]:
        ends = ", ".join(str(end) for end, _ in BUCKETS if end is not None)
        return Inexpressible(f"the hooks count tokens in staleness buckets that end at {ends}, not at {last}")
    older = _TOKENS.replace("[window]", f'{{rlscope_staleness!~"{"|".join(younger)}"}}[window]')
    sign = ">" if rule.direction == "above" else "<="
    # 0.05 as a text, not 1 - 0.95.
    rest = f"{(100 - percent) / 100:.15g}"
    share = f"({older} or 0 * {_TOKENS}) / {_TOKENS} {sign} {rest}"
    return Expressed(_over_window(share, _TOKENS, rule), value_is_metric=False)


def _share(roles: Sequence[str], *selectors: str) -> _Value:
    """GPU-seconds in these states over all GPU-seconds of the roles."""
    role = f'rlscope_role=~"{"|".join(roles)}"'
    gpus = f"max by (rlscope_run_id, rlscope_worker_id) (rlscope_worker_gpus{{{role}}})"
    rates = " or ".join(
        f"rate(rlscope_worker_time_seconds_total{{{role}, {selector}}}[window])" for selector in selectors
    )
    lost = f"sum by (rlscope_run_id) (({rates}) * on (rlscope_run_id, rlscope_worker_id) group_left () {gpus})"
    owned = f"sum by (rlscope_run_id) ({gpus})"
    return _Value(f"({lost} or 0 * {owned}) / {owned}")


_TOKENS: Final = "sum by (rlscope_run_id) (increase(rlscope_train_staleness_total[window]))"
_STEPS: Final = "max by (rlscope_run_id) (increase(rlscope_train_steps_total[window]))"
_DEPTH: Final = "avg by (rlscope_run_id, rlscope_queue) (avg_over_time(rlscope_queue_depth[window]))"
_DROPPED: Final = "sum by (rlscope_run_id) (rlscope_rows_dropped_total)"
_WAIT: Final = 'rlscope_state="wait"'
_MOVES: Final = ('rlscope_state="weight_update"', f'{_WAIT}, rlscope_wait_reason="weights"')
_OF_THE_POLICY: Final = f'{{rlscope_role!="{AUXILIARY_ROLE}"}}'
"""Selects the engines that sample: a judge may have one too."""
_KV_CAPACITY: Final = f"rlscope_engine_kv_capacity{_OF_THE_POLICY}"
_OF_WORKER: Final = "and on (rlscope_run_id, rlscope_worker_id)"
_HEARD: Final = (
    f'max by (rlscope_run_id) (rlscope_worker_heartbeat_seconds{{rlscope_role=~"{"|".join(TRAINER_ROLES)}"}})'
)
_SILENT_S: Final = (
    # A dead worker disappears from the scrapes; it counts as silent for an hour.
    "time() - max by (rlscope_run_id, rlscope_worker_id) (last_over_time(rlscope_worker_heartbeat_seconds[1h]))"
    " unless on (rlscope_run_id, rlscope_worker_id) last_over_time(rlscope_worker_stopped_seconds[1h])"
)
_VALUES: Final[Mapping[str, _Value]] = {
    "staleness.tokens.mean": _Value(
        f"sum by (rlscope_run_id) (increase(rlscope_train_token_age_total[window])) / {_TOKENS}", _TOKENS
    ),
    "idle.trainer_ratio": _share(TRAINER_ROLES, _WAIT),
    "idle.sampler_ratio": _share(SAMPLER_ROLES, _WAIT),
    "weight_update.gpu_ratio": _share(("trainer", "sampler", "colocated"), *_MOVES),
    "queue.depth": _Value(f"max by (rlscope_run_id) ({_DEPTH})"),
    "queue.used_ratio": _Value(
        f"max by (rlscope_run_id) ({_DEPTH} / max by (rlscope_run_id, rlscope_queue) (rlscope_queue_capacity))"
    ),
    "kv.used_ratio": _Value(
        f"sum by (rlscope_run_id) (avg_over_time(rlscope_engine_kv_used[window]) {_OF_WORKER} {_KV_CAPACITY})"
        f" / sum by (rlscope_run_id) ({_KV_CAPACITY} {_OF_WORKER} rlscope_engine_kv_used)"
    ),
    "running.per_engine": _Value(
        f"avg by (rlscope_run_id) (avg_over_time(rlscope_engine_running{_OF_THE_POLICY}[window]))"
    ),
    "waiting.requests": _Value(
        f"avg by (rlscope_run_id) (avg_over_time(rlscope_engine_waiting{_OF_THE_POLICY}[window]))"
    ),
    "throughput.trained_tokens_per_s": _Value(
        "sum by (rlscope_run_id) (rate(rlscope_train_staleness_total[window]))", _STEPS
    ),
    "step.period_s": _Value("1 / max by (rlscope_run_id) (rate(rlscope_train_steps_total[window]))", _STEPS),
    # By the trainers' own clock, so that the time since the last scrape does not count.
    "step.overdue_periods": _Value(
        f"({_HEARD} - max by (rlscope_run_id) (rlscope_train_last_step_seconds))"
        " / max by (rlscope_run_id) (rlscope_train_period_seconds)",
        _STEPS.replace("[window]", "[6h]"),
    ),
    # A run without any scraped worker has ended; its workers did not fall silent.
    "worker.silent_s": _Value(f"(({_SILENT_S}) and on (rlscope_run_id) rlscope_worker_heartbeat_seconds)"),
    "rows.dropped_ratio": _Value(f"{_DROPPED} / ({_DROPPED} + sum by (rlscope_run_id) (rlscope_rows_written_total))"),
}
_QUANTILES: Final[Mapping[str, int]] = {
    "staleness.tokens.p50": 50,
    "staleness.tokens.p95": 95,
    "staleness.tokens.p99": 99,
    "staleness.tokens.max": 100,
}
_REASONS: Final[Mapping[str, str]] = {
    "staleness.over_cap_ratio": "no metric has the run's own cap; compare staleness.tokens.max with it",
    "idle.longest_s": "the hooks export how long a worker waited in all, not for how long without a break",
    "unattributed_ratio": "unattributed time is the remainder of the whole ledger",
    "dropped_stale_ratio": "it counts tokens, and the queue's hook does not know the length of a sample",
    "rows.missing": "only the files of a whole run show it",
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
        started = f"max by (rlscope_run_id) (rlscope_train_steps_total) >= {rules.warm_up_steps}"
        expression = f"({expression})\nand on (rlscope_run_id) {started}"
    if rule.kind == "hint" and alarms:
        held_back = f'ALERTS{{alertstate="firing", alertname=~"{"|".join(map(_escaped, alarms))}"}}'
        expression = f"({expression})\nunless on (rlscope_run_id) {held_back}"
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
        "worker": "{{ $labels.rlscope_worker_id }}",
        "run": "{{ $labels.rlscope_run_id }}",
    }
    return fields[field]


def _comment(rule: Rule, how: Inexpressible) -> str:
    subject = f"{rule.name} ({rule.metric or 'SQL rule'})"
    text = f"{subject}: {how.reason}. `rlscope watch` evaluates it."
    return "# Not expressible in PromQL: " + " ".join(text.split()) + "\n"
