"""Rules are read from TOML and YAML, and what is not known is an error that names the line."""

import tomllib
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from rlscope.alerts.config import RULE_FILE, built_in_rules, example, load_rules, one_off, rules_of, rules_schema
from rlscope.alerts.durations import parse_duration, parse_window, write_duration, write_window
from rlscope.alerts.types import WHOLE_RUN, Rule, RuleWindow
from rlscope.errors import RuleError
from rlscope.input_file import parse_source

S = 1_000_000_000
STALE = Rule(
    name="stale",
    metric="staleness.tokens.p95",
    sql=None,
    direction="above",
    threshold=4.0,
    window=RuleWindow(None, 20),
    for_ns=90 * S,
    keep_firing_for_ns=300 * S,
    kind="alarm",
    min_evidence=5,
    labels={"severity": "critical", "team": "rl"},
    annotations={"summary": "{value} of {threshold}"},
)
TOML = """
interval = "5s"
warm_up_steps = 0

[[rules]]
name = "stale"
kind = "alarm"
metric = "staleness.tokens.p95"
above = 4
window = "20 steps"
for = "1m30s"
keep_firing_for = "5m"
min_evidence = 5
[rules.labels]
severity = "critical"
team = "rl"
[rules.annotations]
summary = "{value} of {threshold}"

[[rules]]
name = "own"
sql = \"\"\"
SELECT end_ns AS at_ns,
loss = 1 AS value FROM train_steps
\"\"\"
below = 0.5
reduce = "max"
"""
YAML = """
interval: 5s
warm_up_steps: 0
rules:
  - name: stale
    kind: alarm
    metric: staleness.tokens.p95
    above: 4
    window: 20 steps
    for: 1m30s
    keep_firing_for: 5m
    min_evidence: 5
    labels: {severity: critical, team: rl}
    annotations:
      summary: "{value} of {threshold}"
  - name: own
    sql: |
      SELECT end_ns AS at_ns,
      loss = 1 AS value FROM train_steps
    below: 0.5
    reduce: max
"""


def written(tmp_path: Path, text: str, name: str = "rules.toml") -> Path:
    path = tmp_path / name
    path.write_text(text)
    return path


def test_toml_and_yaml_say_the_same(tmp_path: Path) -> None:
    rules = load_rules(written(tmp_path, TOML))
    assert rules.rules[0] == STALE
    assert (rules.interval_ns, rules.warm_up_steps) == (5 * S, 0)
    own = rules.rules[1]
    assert (own.metric, own.direction, own.threshold, own.reduction) == (None, "below", 0.5, "max")
    assert (own.window, own.severity, own.kind) == (RuleWindow(300 * S), "warning", "hint")
    assert load_rules(written(tmp_path, YAML, "rules.yaml")) == rules


def test_the_example_is_what_is_built_in(tmp_path: Path) -> None:
    rules = built_in_rules()
    assert load_rules(written(tmp_path, example())) == rules
    assert {"trainers_idle", "samplers_idle", "stale_tokens", "worker_silent"} <= {rule.name for rule in rules.rules}


def test_the_schema_accepts_the_rules_and_receivers_that_are_shown_and_refuses_what_is_refused() -> None:
    check = Draft202012Validator(rules_schema())
    page = (Path(__file__).parents[2] / "docs" / "watch.md").read_text(encoding="utf-8")
    for text in (TOML, example(), page.split("```toml")[1].split("```")[0]):
        assert check.is_valid(tomllib.loads(text))
    rule = {"name": "a", "metric": "queue.depth", "above": 1}
    assert check.is_valid({"rules": [rule | {"window": "20 steps", "for": "1m30s"}]})
    for wrong in ({"below": 1}, {"sql": "SELECT 1"}, {"window": "5 min"}, {"for": 300}, {"for": "s"}, {"kind": "hnt"}):
        assert not check.is_valid({"rules": [rule | wrong]})


MISTAKES = [
    ('[[rules]]\nname = "a"\nmetrc = "queue.depth"', 3, "key 'metrc'", "Did you mean 'metric'?"),
    ('[[rules]]\nname = "a"\nmetric = "queue.dept"\nabove = 1', 3, "metric 'queue.dept'", "'queue.depth'"),
    ('[[rules]]\nname = "a"\nmetric = "queue.depth"\n\nabove = "4"', 5, "'4'", "a number"),
    ('[[rules]]\nname = "a"\nmetric = "queue.depth"\nabove = true', 4, "True", "a number"),
    ('[[rules]]\nname = "a"\nmetric = "queue.depth"\nabove = 1\nbelow = 2', 5, "both above and below", "one of"),
    ('# c\n[[rules]]\nname = "a"\nmetric = "queue.depth"', 2, "neither above nor below", "one of"),
    ('[[rules]]\nname = "a"\nabove = 1', 1, "neither metric nor sql", "one of"),
    ('[[rules]]\nmetric = "queue.depth"\nabove = 1', 1, "rules[0].name: found no such key", "a non-empty string"),
    ('[[rules]]\nname = "a"\nmetric = "queue.depth"\nabove = 1\nwindow = "5 min"', 5, "'5 min'", "such as 30s"),
    ('[[rules]]\nname = "a"\nmetric = "queue.depth"\nabove = 1\nfor = 300', 5, "300", "with a unit"),
    ('[[rules]]\nname = "a"\nmetric = "queue.depth"\nabove = 1\nreduce = "max"', 5, "reduce", "beside `sql`"),
    ('[[rules]]\nname = "a"\nmetric = "queue.depth"\nabove = 1\nkind = "hnt"', 5, "kind: found 'hnt'", "mean 'hint'?"),
    ('[[rules]]\nname = "a"\nmetric = "queue.depth"\nabove = 1\nmin_evidence = -1', 5, "-1", "at least 0"),
    ('[[rules]]\nname = "a"\nmetric = "queue.depth"\nabove = 1\n[rules.labels]\nseverity = "fatal"', 6, "'fatal'", ""),
    ('[[rules]]\nname = "a"\nmetric = "queue.depth"\nabove = 1\nlabels = { n = 1 }', 5, "n: found 1", "a string"),
    ('[[rules]]\nname = "a"\nmetric = "queue.depth"\nabove = 1\nannotations = {s="{vale}"}', 5, "'vale'", "'value'"),
    ('[[rules]]\nname = "a"\nmetric = "queue.depth"\nabove = 1\nannotations = { s = "{" }', 5, "'{'", "in braces"),
    ('[[rules]]\nname = "a"\nmetric = "queue.depth"\nabove = 1\n[[rules]]\nname = "a"\nsql = "SELECT 1"\nabove = 1',
     6, "'a'", "a name of its own"),
    ('intervall = "5s"', 1, "key 'intervall'", "Did you mean 'interval'?"),
    ('\ninterval = "0s"', 2, "'0s'", "at least 1ms"),
    ("warm_up_steps = 1.5", 1, "1.5", "whole number"),
    ("rules = 3", 1, "3", "a list of tables"),
    ("rules = []", 1, "[]", "at least one rule"),
    ('[[rules]]\nname = "a"\nmetric = "idle.trainer_ratio"\nabove = 30', 4, "30", "30% is 0.3"),
    ('[[rules]]\nname = "a"\nmetric = "idle.trainer_ratio"\nbelow = -0.01', 4, "-0.01", "0 to 1"),
    ('[[rules]]\nname = "a', 2, "not TOML", ""),
    ('[[rules]]\nname = " "\nmetric = "queue.depth"\nabove = 1', 2, "rules[0].name: found ' '", "a non-empty string"),
    ('rules = [3]', 1, "rules[0]: found 3", "a table"),
    ('[[rules]]\nname = "a"\nmetric = "queue.depth"\nabove = 1\nlabels = 3', 5, "labels: found 3", "a table"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "line", "found", "help_"), MISTAKES)
def test_a_mistake_names_the_file_the_line_and_what_was_meant(
    tmp_path: Path, text: str, line: int, found: str, help_: str
) -> None:
    path = written(tmp_path, text)
    with pytest.raises(RuleError) as error:
        load_rules(path)
    message = str(error.value)
    assert message.startswith(f"{path}:{line}") and ": found " in message
    assert found in message
    assert help_ in message


YAML_MISTAKES = [
    ("rules:\n  - name: a\n    metric: queue.depth\n    abve: 4", 4, "'abve'"),
    ("rules:\n  - name: a\n    metric: queue.depth\n    above: 4\n    labels:\n      severity: hi", 6, "'hi'"),
    ("rules: [", 1, "not YAML"),
    ("rules:\n  - 1: a\n    name: b", 2, "found the key 1; expected keys that are strings"),
    ("rules:\n  - name: a\n    metric: queue.depth\n    above: 4\n    labels: {1: b}", 5, "found the key 1"),
    ("rules: [null]", 1, "found None; expected a table"),
    ("receivers:\n  - kind: [a]", 2, "expected one of 'alertmanager'"),
    ("- a", 1, "a list at its top"),
]


@pytest.mark.parametrize(("text", "line", "found"), YAML_MISTAKES)
def test_a_mistake_in_yaml_names_its_line_too(tmp_path: Path, text: str, line: int, found: str) -> None:
    path = written(tmp_path, text, "rules.yml")
    with pytest.raises(RuleError, match=found) as error:
        load_rules(path)
    assert str(error.value).startswith(f"{path}:{line}") and ": found " in str(error.value)


def test_a_file_that_cannot_be_read_is_an_error_of_rules(tmp_path: Path) -> None:
    with pytest.raises(
        RuleError, match=r"rules\.toml: found No such file or directory; expected a file of alert rules"
    ):
        load_rules(tmp_path / "rules.toml")


def test_a_file_that_names_no_rules_leaves_the_built_in_ones_in_force(tmp_path: Path) -> None:
    receivers = '[[receivers]]\nname = "own"\nkind = "command"\ncommand = ["logger"]\n'
    for text, name in (("", "empty.toml"), ("", "empty.yaml"), (receivers, "receivers.toml")):
        assert load_rules(written(tmp_path, text, name)) == built_in_rules()
    held = load_rules(written(tmp_path, 'interval = "30s"\nwarm_up_steps = 7\n'))
    assert (held.interval_ns, held.warm_up_steps, held.rules) == (30 * S, 7, built_in_rules().rules)


def test_a_one_off_is_critical_and_asks_about_the_whole_run() -> None:
    rule = one_off("idle.trainer_ratio < 0.25")
    assert (rule.metric, rule.direction, rule.threshold) == ("idle.trainer_ratio", "below", 0.25)
    assert (rule.severity, rule.window, rule.for_ns) == ("critical", WHOLE_RUN, 0)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("idle.trainer_ratio >= 0.3", "no METRIC > NUMBER"),
        ("idle.trainer_ratio > 30%", "no METRIC > NUMBER"),
        ("idle.trainer_ratio > nan", "no METRIC > NUMBER"),
        ("idle.trainer_ratio > 1.01", "30% is 0.3"),
        ("idle.trainer > 0.3", "Did you mean 'idle.trainer_ratio'"),
    ],
)
def test_a_one_off_that_is_no_rule_is_refused(text: str, found: str) -> None:
    with pytest.raises(RuleError, match=found):
        one_off(text)


@pytest.mark.parametrize(
    "text", ["idle.trainer_ratio > 1", "idle.trainer_ratio > 0", "throughput.residual_ratio < -0.5", "queue.depth > 30"]
)
def test_a_share_may_be_held_to_its_ends_and_what_is_no_share_to_anything(text: str) -> None:
    assert one_off(text).threshold == float(text.split()[-1])


@pytest.mark.parametrize(
    ("text", "length_ns"),
    [("30s", 30 * S), ("5m", 300 * S), ("1h30m", 5400 * S), ("500ms", S // 2), ("1d", 86400 * S), ("0s", 0)],
)
def test_durations_are_read_and_written_alike(text: str, length_ns: int) -> None:
    assert parse_duration(text) == length_ns
    assert write_duration(length_ns) == text


@pytest.mark.parametrize("text", ["", "5", "5 m", "1.5h", "30s1m", "1s1s", "-5s", "5w", "367d", "5ms5"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_duration(text)


@pytest.mark.parametrize("text", ["20 steps", "1 step", "5m"])
def test_windows_are_read_and_written_alike(text: str) -> None:
    assert write_window(parse_window(text)) == text


@pytest.mark.parametrize("text", ["0 steps", "0s", "steps", "2steps"])
def test_what_is_no_window_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_window(text)


def test_the_rules_that_the_documentation_shows_are_rules() -> None:
    text = (Path(__file__).parents[2] / "docs" / "alerts.md").read_text(encoding="utf-8")
    shown = text.split("```toml\n")[1].split("```")[0]
    rules = rules_of(parse_source(shown, "alerts.md", RULE_FILE))
    assert [rule.name for rule in rules.rules] == ["trainers_idle", "loss_explodes"]
