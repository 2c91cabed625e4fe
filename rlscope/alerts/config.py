"""Reads rules: a file of TOML or YAML, the built-in ones, or one line of the command line. Evaluates nothing.

What it does not know is an error that names the file and the line, and the nearest name that it does know.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from importlib.resources import files
from pathlib import Path
from string import Formatter
from typing import Final, cast, get_args

from rlscope.alerts.durations import parse_duration, parse_window
from rlscope.alerts.metrics import BY_NAME, METRICS, RESIDUAL
from rlscope.alerts.receiver import receivers_of
from rlscope.alerts.source import Place, RuleSource, parse_source, read_source
from rlscope.alerts.types import WHOLE_RUN, Direction, Reduction, Rule, RuleKind, RuleSet, RuleWindow
from rlscope.analysis.result import SEVERITIES
from rlscope.errors import RuleError

DEFAULT_WINDOW: Final = RuleWindow(300_000_000_000)
"""Five minutes: several steps of most runs, and what Prometheus' own examples take."""
ANNOTATION_FIELDS: Final = (
    "rule",
    "metric",
    "value",
    "worst",
    "threshold",
    "window",
    "for",
    "evidence",
    "worker",
    "run",
)
"""What may stand in braces in an annotation."""
_TOP_KEYS: Final = ("interval", "warm_up_steps", "rules", "receivers")
_RULE_KEYS: Final = (
    "name", "metric", "sql", "above", "below", "window", "for", "keep_firing_for", "kind", "min_evidence", "reduce",
    "labels", "annotations",
)  # fmt: skip
_OWN_MIN_EVIDENCE: Final = 1
# What a prediction leaves unexplained may be more than all of it, and less than none.
_SHARES: Final = {metric.name for metric in METRICS if metric.unit == "ratio"} - {RESIDUAL}
_SHARE: Final = "0 to 1, for the metric is a share: 30 % is 0.3"


def load_rules(path: Path) -> RuleSet:
    """The rules of a file. Raises RuleError, for its receivers too: a mistake shows before the watch needs them."""
    source = read_source(path)
    receivers_of(source)
    return rules_of(source)


def example() -> str:
    """The built-in rules as commented TOML: what `rlscope rules --example` prints and what is used without a file."""
    return (files("rlscope.alerts") / "built_in.toml").read_text(encoding="utf-8")


def built_in_rules() -> RuleSet:
    """The rules that hold where the user names none."""
    return rules_of(parse_source(example(), "built_in.toml", is_yaml=False))


def rules_of(source: RuleSource) -> RuleSet:
    """The rules of a document, the built-in ones where it names none. Raises RuleError."""
    _check_keys(source, (), source.document, _TOP_KEYS)
    plain = RuleSet(_rules(source) if "rules" in source.document else built_in_rules().rules)
    interval_ns = _duration(source, (), source.document, "interval", plain.interval_ns)
    if interval_ns < 1_000_000:
        raise _wrong(source, ("interval",), source.document["interval"], "at least 1ms")
    warm_up = source.document.get("warm_up_steps", plain.warm_up_steps)
    if not _is_whole(warm_up):
        raise _wrong(source, ("warm_up_steps",), warm_up, "a whole number of steps, at least 0")
    return replace(plain, interval_ns=interval_ns, warm_up_steps=cast("int", warm_up))


def one_off(text: str) -> Rule:
    """A rule like `staleness.tokens.p95 > 4`: critical, over the whole run after warm-up. Raises RuleError.

    The slightest evidence is enough: who asks about one run in one line wants an answer.
    """
    words = text.split()
    place = f"--fail-if {text!r}"
    if len(words) != 3 or words[1] not in (">", "<") or not _is_number_text(words[2]):
        raise RuleError.of(
            place,
            found="no METRIC > NUMBER",
            expected="a metric, > or <, and a number in the metric's unit: 'idle.trainer_ratio > 0.3'",
            next_step="`rlscope rules` lists the metrics.",
        )
    if words[0] not in BY_NAME:
        raise _unknown(place, "metric", words[0], tuple(BY_NAME))
    if not _is_reached(words[0], float(words[2])):
        raise RuleError.of(place, found=words[2], expected=_SHARE, next_step="Otherwise it always or never fires.")
    return Rule(
        name=text,
        metric=words[0],
        sql=None,
        direction="above" if words[1] == ">" else "below",
        threshold=float(words[2]),
        window=WHOLE_RUN,
        kind="alarm",
        labels={"severity": "critical"},
    )


def _rules(source: RuleSource) -> tuple[Rule, ...]:
    raw = source.document["rules"]
    if not isinstance(raw, list):
        raise _wrong(source, ("rules",), raw, "a list of tables, each headed [[rules]]")
    if not raw:
        raise _wrong(source, ("rules",), raw, "at least one rule, or no `rules` for the built-in ones")
    tables = cast("list[object]", raw)
    rules = tuple(_rule(source, ("rules", index), table) for index, table in enumerate(tables))
    _check_names(source, rules)
    return rules


def _rule(source: RuleSource, place: Place, raw: object) -> Rule:
    if not isinstance(raw, dict):
        raise _wrong(source, place, raw, "a table with the entries of a rule")
    table = cast("Mapping[str, object]", raw)
    _check_keys(source, place, table, _RULE_KEYS)
    metric, sql = _subject(source, place, table)
    direction: Direction = _one_of(source, place, table, ("above", "below"))  # type: ignore[assignment]
    least = BY_NAME[metric].min_evidence if metric is not None else _OWN_MIN_EVIDENCE
    min_evidence = table.get("min_evidence", least)
    if not _is_whole(min_evidence):
        raise _wrong(source, (*place, "min_evidence"), min_evidence, "a whole number, at least 0")
    return Rule(
        name=_text(source, place, table, "name"),
        metric=metric,
        sql=sql,
        direction=direction,
        threshold=_threshold(source, (*place, direction), table[direction], metric),
        window=_window(source, place, table),
        for_ns=_duration(source, place, table, "for", 0),
        keep_firing_for_ns=_duration(source, place, table, "keep_firing_for", 0),
        kind=_choice(source, place, table, "kind", get_args(RuleKind), "hint"),  # type: ignore[arg-type]
        min_evidence=cast("int", min_evidence),
        reduction=_choice(source, place, table, "reduce", get_args(Reduction), "mean"),  # type: ignore[arg-type]
        labels=_labels(source, place, table),
        annotations=_annotations(source, place, table),
    )


def _subject(source: RuleSource, place: Place, table: Mapping[str, object]) -> tuple[str | None, str | None]:
    """The metric's name, or the user's own SELECT."""
    if _one_of(source, place, table, ("metric", "sql")) == "sql":
        return None, _text(source, place, table, "sql")
    if "reduce" in table:
        raise _wrong(source, (*place, "reduce"), "`reduce` beside `metric`", "it only beside `sql`")
    metric = _text(source, place, table, "metric")
    if metric not in BY_NAME:
        raise _unknown(source.at((*place, "metric")), "metric", metric, tuple(BY_NAME))
    return metric, None


def _one_of(source: RuleSource, place: Place, table: Mapping[str, object], keys: tuple[str, str]) -> str:
    given = [key for key in keys if key in table]
    if len(given) != 1:
        raise RuleError.of(
            source.at((*place, keys[1]) if given else place),
            found=f"both {keys[0]} and {keys[1]}" if given else f"neither {keys[0]} nor {keys[1]}",
            expected=f"one of {keys[0]} and {keys[1]} in every rule",
            next_step="`rlscope rules --example` shows rules.",
        )
    return given[0]


def _window(source: RuleSource, place: Place, table: Mapping[str, object]) -> RuleWindow:
    if "window" not in table:
        return DEFAULT_WINDOW
    text = _text(source, place, table, "window")
    try:
        return parse_window(text)
    except ValueError as error:
        raise _wrong(source, (*place, "window"), text, str(error)) from None


def _duration(source: RuleSource, place: Place, table: Mapping[str, object], key: str, default_ns: int) -> int:
    if key not in table:
        return default_ns
    value = table[key]
    try:
        return parse_duration(value) if isinstance(value, str) else parse_duration("")
    except ValueError as error:
        raise _wrong(source, (*place, key), value, str(error)) from None


def _labels(source: RuleSource, place: Place, table: Mapping[str, object]) -> dict[str, str]:
    labels = {"severity": "warning"} | _texts(source, (*place, "labels"), table.get("labels", {}))
    if labels["severity"] not in SEVERITIES:
        where = (*place, "labels", "severity")
        raise _unknown(source.at(where), "severity", labels["severity"], SEVERITIES)
    return labels


def _annotations(source: RuleSource, place: Place, table: Mapping[str, object]) -> dict[str, str]:
    annotations = _texts(source, (*place, "annotations"), table.get("annotations", {}))
    for key, text in annotations.items():
        where = (*place, "annotations", key)
        try:
            fields = [field for _, field, _, _ in Formatter().parse(text) if field is not None]
        except ValueError as error:
            raise _wrong(source, where, text, f"text with fields in braces ({error})") from None
        for field in fields:
            if field not in ANNOTATION_FIELDS:
                raise _unknown(source.at(where), "field", field, ANNOTATION_FIELDS)
    return annotations


def _texts(source: RuleSource, place: Place, raw: object) -> dict[str, str]:
    if not isinstance(raw, dict):
        raise _wrong(source, place, raw, "a table of texts")
    for key, value in cast("Mapping[object, object]", raw).items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise _wrong(source, (*place, str(key)), value, "a text")
    return dict(cast("Mapping[str, str]", raw))


def _choice(
    source: RuleSource, place: Place, table: Mapping[str, object], key: str, known: Sequence[str], default: str
) -> str:
    value = table.get(key, default)
    if value not in known:
        raise _unknown(source.at((*place, key)), key, str(value), known)
    return str(value)


def _text(source: RuleSource, place: Place, table: Mapping[str, object], key: str) -> str:
    value = table.get(key)
    if not isinstance(value, str) or not value.strip():
        raise _wrong(source, (*place, key), value, f"a text for {key}")
    return value


def _threshold(source: RuleSource, place: Place, value: object, metric: str | None) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
        raise _wrong(source, place, value, "a number in the metric's unit, without its unit")
    if not _is_reached(metric, value):
        raise _wrong(source, place, value, _SHARE)
    return float(value)


def _is_reached(metric: str | None, threshold: float) -> bool:
    """Whether values lie on both sides of a threshold, or may: a share of 30 is one of 30 %, misread."""
    return metric not in _SHARES or 0 <= threshold <= 1


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_number_text(text: str) -> bool:
    try:
        return float(text) == float(text)
    except ValueError:
        return False


def _check_keys(source: RuleSource, place: Place, table: Mapping[str, object], known: Sequence[str]) -> None:
    for key in table:
        if key not in known:
            raise _unknown(source.at((*place, key)), "key", key, known)


def _check_names(source: RuleSource, rules: Sequence[Rule]) -> None:
    seen: set[str] = set()
    for index, rule in enumerate(rules):
        if rule.name in seen:
            raise _wrong(source, ("rules", index, "name"), rule.name, "a name of its own for every rule")
        seen.add(rule.name)


def _unknown(where: str, kind: str, name: str, known: Sequence[str]) -> RuleError:
    near = get_close_matches(name, known, n=1)
    return RuleError.of(
        where,
        found=f"{kind} {name!r}, which there is not",
        expected="one of " + ", ".join(known),
        next_step=f"Did you mean {near[0]!r}?" if near else "`rlscope rules` lists what there is.",
    )


def _wrong(source: RuleSource, place: Place, value: object, expected: str) -> RuleError:
    return RuleError.of(
        source.at(place),
        found="nothing" if value is None else repr(value),
        expected=expected,
        next_step="`rlscope rules --example` shows rules.",
    )
