"""Reads alert rules from a TOML file, the built-in rules, or one line of the command line. Evaluates nothing.

Errors name the file, the key and the nearest valid name.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from pathlib import Path
from string import Formatter
from typing import Annotated, ClassVar, Final, NamedTuple

from pydantic import BeforeValidator, ConfigDict, Field, TypeAdapter

from rlscope.alerts.durations import parse_duration, parse_window
from rlscope.alerts.evaluate import ANNOTATION_FIELDS
from rlscope.alerts.metrics import BY_NAME, METRICS
from rlscope.alerts.receiver import Receiver, receivers_of
from rlscope.alerts.types import INTERVAL_NS, WARM_UP_STEPS, Direction, Rule, RuleKind, RuleSet, RuleWindow
from rlscope.analysis.result import SEVERITIES
from rlscope.document import extended
from rlscope.errors import RuleError
from rlscope.input_file import FileKind, ParsedFile, Place, did_you_mean, parse_source, read_source

DEFAULT_WINDOW: Final = RuleWindow(300_000_000_000)
"""Five minutes: several steps of most runs, and the window of Prometheus' own examples."""
RULE_FILE: Final = FileKind(
    "a file of alert rules",
    "`rlscope rules --example` shows rules.",
    error=RuleError,
    advice={"receivers": "docs/watch.md shows receivers."},
)
NUMBER: Final = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"
"""A number of the command line, as a regular expression."""
_ONE_OFF: Final = re.compile(rf"(?P<metric>[^\s<>=]+)\s*(?P<sign>[<>])\s*(?P<threshold>{NUMBER})")
_LISTED: Final = "`rlscope rules` lists the metrics."
_SHARES: Final = {metric.name for metric in METRICS if metric.unit == "ratio"}
_MOST: Final = 1e18
"""Maximum threshold. No quantity of a run is larger."""
_SHARE: Final = "0 to 1, because the metric is a ratio: 30% is 0.3"


def _threshold(written: object) -> float:
    if isinstance(written, bool) or not isinstance(written, int | float) or not abs(written) <= _MOST:
        raise ValueError(f"a number in the metric's unit, written without the unit, at most {_MOST:g}")
    return float(written)


_Text = Annotated[str, Field(strict=True, min_length=1, pattern=r"\S")]
_Texts = dict[str, Annotated[str, Field(strict=True)]]
_Whole = Annotated[int, Field(strict=True, ge=0, le=10**12)]
_Threshold = Annotated[float, BeforeValidator(_threshold)]
_DurationNs = Annotated[int, BeforeValidator(parse_duration)]
_Window = Annotated[RuleWindow, BeforeValidator(parse_window)]


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleTable:
    """One rule."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    name: _Text
    """Name in alerts and labels; unique in the file."""
    metric: _Text
    """A metric that `rlscope rules` lists."""
    above: _Threshold | None = None
    """Fires above this value, in the metric's unit."""
    below: _Threshold | None = None
    """Fires below this value, in the metric's unit."""
    window: _Window = DEFAULT_WINDOW
    """Length of the interval that the metric covers: a duration or a number of steps."""
    for_ns: Annotated[_DurationNs, Field(alias="for")] = 0
    """Time that the condition must hold before the rule fires."""
    keep_firing_for_ns: Annotated[_DurationNs, Field(alias="keep_firing_for")] = 0
    """Time that the rule keeps firing after the condition last held."""
    kind: RuleKind = "hint"
    """Kind of the rule."""
    labels: _Texts = field(default_factory=dict[str, str])
    """Labels of its alerts; `severity` is info, warning or critical."""
    annotations: _Texts = field(default_factory=dict[str, str])
    """Texts of its alerts, with ANNOTATION_FIELDS of `evaluate` in braces."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleDocument:
    """A file of alert rules and of the receivers that are notified."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    interval_ns: Annotated[_DurationNs, Field(alias="interval")] = INTERVAL_NS
    """Time between two evaluations, at least 1s."""
    warm_up_steps: _Whole = WARM_UP_STEPS
    """Optimizer steps before any rule is evaluated."""
    rules: list[RuleTable] | None = None
    """The rules. Without this key, the built-in rules apply."""
    receivers: list[Receiver] = field(default_factory=list[Receiver])
    """Receivers of alerts."""


class RuleFile(NamedTuple):
    """The rules and receivers of a file."""

    rules: RuleSet
    receivers: tuple[Receiver, ...] = ()


@cache
def _model() -> TypeAdapter[RuleDocument]:
    return TypeAdapter(RuleDocument)


def load_rules(path: Path) -> RuleFile:
    """Return the rules and receivers of a file. Raises RuleError if one of them cannot be used."""
    return rules_in(read_source(path, RULE_FILE))


def example() -> str:
    """Return the built-in rules as commented TOML, which `rlscope rules --example` prints."""
    return (files("rlscope.alerts") / "built_in.toml").read_text(encoding="utf-8")


@cache
def built_in_rules() -> RuleSet:
    """Return the rules that apply if the user gives none."""
    source = parse_source(example(), "built_in.toml", RULE_FILE)
    # Not read as a whole file: building the model of its receivers takes longer than reading these rules.
    return RuleSet(_rules(source, TypeAdapter(list[RuleTable]).validate_python(source.document["rules"])))


def rules_in(source: ParsedFile) -> RuleFile:
    """Return the rules of a document, or the built-in rules if it has none, and its receivers. Raises RuleError."""
    written = source.validated(_model())
    if written.interval_ns < 1_000_000_000:
        raise source.error(("interval",), found=repr(source.document["interval"]), expected="at least 1s")
    rules = RuleSet(
        rules=built_in_rules().rules if written.rules is None else _rules(source, written.rules),
        interval_ns=written.interval_ns,
        warm_up_steps=written.warm_up_steps,
    )
    return RuleFile(rules, receivers_of(source, written.receivers))


def one_off(text: str) -> Rule:
    """Return a critical rule over the whole run, such as `staleness.tokens.p95 > 4`. Raises RuleError."""
    found = _ONE_OFF.fullmatch(text.strip())
    if found is None or not abs(threshold := float(found["threshold"])) <= _MOST:
        if names_baseline(text):
            raise refused_line(
                text,
                "a baseline that is not given",
                "--baseline with the folder of a run, or the JSON document of an analysis",
                "Give it, or write a number in place of `baseline`.",
            )
        expected = "a metric, > or <, and a number in the metric's unit: 'idle.trainer_ratio > 0.3'"
        raise refused_line(text, "no METRIC > NUMBER", expected)
    metric = found["metric"]
    if metric not in BY_NAME:
        meant = did_you_mean(metric, tuple(BY_NAME))
        step = f"{meant} {_LISTED}" if meant else _LISTED
        raise refused_line(text, f"unknown metric {metric!r}", "one of " + ", ".join(BY_NAME), step)
    if not _is_reachable(metric, threshold):
        raise refused_line(text, found["threshold"], _SHARE, "Otherwise it always or never fires.")
    return Rule.over_run(text, metric, "above" if found["sign"] == ">" else "below", threshold)


def names_baseline(text: str) -> bool:
    """Return whether a rule of the command line refers to a baseline."""
    return re.search(r"\bbaseline\b", text) is not None


def refused_line(text: str, found: str, expected: str, next_step: str = _LISTED) -> RuleError:
    """Return the error for a line of the command line that is no rule."""
    return RuleError.of(f"--fail-if {text!r}", found=found, expected=expected, next_step=next_step)


def _rules(source: ParsedFile, tables: Sequence[RuleTable]) -> tuple[Rule, ...]:
    if not tables:
        expected = "at least one rule, or no `rules` key for the built-in ones"
        raise source.error(("rules",), found="[]", expected=expected)
    rules = tuple(_rule(source, ("rules", index), table) for index, table in enumerate(tables))
    source.refuse_repeated("rules", [rule.name for rule in rules], "rule")
    return rules


def _rule(source: ParsedFile, place: Place, table: RuleTable) -> Rule:
    if table.metric not in BY_NAME:
        raise source.unknown((*place, "metric"), "metric", table.metric, tuple(BY_NAME))
    direction, threshold = _condition(source, place, table)
    labels = _labels(source, place, table)
    _check_annotations(source, place, table)
    return extended(Rule, table, direction=direction, threshold=threshold, labels=labels)


def _condition(source: ParsedFile, place: Place, table: RuleTable) -> tuple[Direction, float]:
    direction: Direction = "below" if table.above is None else "above"
    threshold = table.below if table.above is None else table.above
    if threshold is None or None not in (table.above, table.below):
        raise source.error(
            place if threshold is None else (*place, "below"),
            found="neither above nor below" if threshold is None else "both above and below",
            expected="one of above and below in every rule",
        )
    if not _is_reachable(table.metric, threshold):
        raise source.error((*place, direction), found=f"{threshold:g}", expected=_SHARE)
    return direction, threshold


def _labels(source: ParsedFile, place: Place, table: RuleTable) -> dict[str, str]:
    labels = {"severity": "warning"} | table.labels
    if labels["severity"] not in SEVERITIES:
        raise source.unknown((*place, "labels", "severity"), "severity", labels["severity"], SEVERITIES)
    return labels


def _check_annotations(source: ParsedFile, place: Place, table: RuleTable) -> None:
    """Refuse an annotation that cannot be filled in."""
    for key, text in table.annotations.items():
        where = (*place, "annotations", key)
        try:
            names = [name for _, name, _, _ in Formatter().parse(text) if name is not None]
        except ValueError as error:
            raise source.error(where, found=repr(text), expected=f"text with fields in braces ({error})") from None
        for name in names:
            if name not in ANNOTATION_FIELDS:
                raise source.unknown(where, "field", name, ANNOTATION_FIELDS)


def _is_reachable(metric: str, threshold: float) -> bool:
    """Return whether values can lie on both sides of a threshold. A threshold of 30 on a ratio is a misread 30%."""
    return metric not in _SHARES or 0 <= threshold <= 1
