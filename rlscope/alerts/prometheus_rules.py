"""The rules as a Prometheus rule file: the same names, thresholds and texts, over the metrics that the hooks export.

What Prometheus cannot hold stands in the file as a comment with the reason. Warm-up and the holding back of hints are
part of each expression. Costs, evidence other than counts, and late rows are not Prometheus' to know.
"""

from string import Formatter
from typing import Any, Final

import yaml

from rlscope.alerts import prometheus_names as names
from rlscope.alerts.metrics import BY_NAME
from rlscope.alerts.prometheus_expressions import Expressed, Inexpressible, express
from rlscope.alerts.rule import Rule, RuleSet
from rlscope.alerts.spans import write_duration, write_window
from rlscope.alerts.wording import written

_HEAD: Final = """\
# Made by `rlscope rules --prometheus`. Needs the metrics of rlscope-otel, scraped or sent from every worker.
"""
_HUMANE: Final = {
    "ratio": "{{ $value | humanizePercentage }}",
    "s": "{{ $value | humanizeDuration }}",
    "versions": '{{ $value | printf "%.3g" }} versions',
    "tokens_per_s": "{{ $value | humanize }} tokens/s",
}
_PLAIN: Final = '{{ $value | printf "%.4g" }}'


def as_rule_file(rules: RuleSet) -> str:
    """The text of a rule file for Prometheus 2.42 or newer, which knows `keep_firing_for`."""
    expressed = [(rule, express(rule)) for rule in rules.rules]
    alarms = [rule.name for rule, how in expressed if rule.kind == "data_quality" and isinstance(how, Expressed)]
    entries = [_entry(rule, how, rules, alarms) for rule, how in expressed if isinstance(how, Expressed)]
    group = {"name": "rlscope", "interval": write_duration(rules.interval_ns), "rules": entries}
    body = yaml.dump({"groups": [group]}, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=10_000)
    left = [_comment(rule, how) for rule, how in expressed if isinstance(how, Inexpressible)]
    return _HEAD + body + "".join(left)


class _Dumper(yaml.SafeDumper):
    """Writes texts of several lines as they read."""


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
        started = f"max by ({names.RUN}) ({names.STEPS}) >= {rules.warm_up_steps}"
        expression = f"({expression})\nand on ({names.RUN}) {started}"
    if rule.kind == "hint" and alarms:
        held_back = f'ALERTS{{alertstate="firing", alertname=~"{"|".join(map(_escaped, alarms))}"}}'
        expression = f"({expression})\nunless on ({names.RUN}) {held_back}"
    return expression


def _escaped(name: str) -> str:
    """A name inside a regular expression: what could mean something there matches any one character."""
    return "".join(char if char.isalnum() or char in "_- " else "." for char in name)


def _annotation(rule: Rule, how: Expressed, text: str) -> str:
    """An annotation with our fields as Prometheus' templates; what reads like a template of its own is kept as text."""
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
        "evidence": "what was scraped",
        "worker": f"{{{{ $labels.{names.WORKER} }}}}",
        "run": f"{{{{ $labels.{names.RUN} }}}}",
    }
    return fields[field]


def _comment(rule: Rule, how: Inexpressible) -> str:
    subject = f"{rule.name} ({rule.metric or 'own SELECT'})"
    return "# Not here: " + " ".join(f"{subject}: {how.reason}. `rlscope watch` holds it.".split()) + "\n"
