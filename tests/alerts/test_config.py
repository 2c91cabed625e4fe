"""Rules are read from TOML, and what is not known is an error that names the key."""

from pathlib import Path

import pytest

from rlscope.alerts.config import RULE_FILE, built_in_rules, example, load_rules, one_off, rules_in
from rlscope.alerts.durations import parse_duration, parse_window, write_duration, write_window
from rlscope.alerts.types import WHOLE_RUN, Rule, RuleWindow
from rlscope.errors import RuleError
from rlscope.input_file import parse_source

S = 1_000_000_000
STALE = Rule(
    name="stale",
    metric="staleness.tokens.p95",
    direction="above",
    threshold=4.0,
    window=RuleWindow(None, 20),
    for_ns=90 * S,
    keep_firing_for_ns=300 * S,
    kind="alarm",
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
[rules.labels]
severity = "critical"
team = "rl"
[rules.annotations]
summary = "{value} of {threshold}"

[[rules]]
name = "shallow"
metric = "queue.depth"
below = 0.5
"""


def written(tmp_path: Path, text: str, name: str = "rules.toml") -> Path:
    path = tmp_path / name
    path.write_text(text)
    return path


def test_a_file_of_rules_is_read_as_it_is_written(tmp_path: Path) -> None:
    rules, receivers = load_rules(written(tmp_path, TOML))
    assert (rules.rules[0], receivers) == (STALE, ())
    assert (rules.interval_ns, rules.warm_up_steps) == (5 * S, 0)
    shallow = rules.rules[1]
    assert (shallow.direction, shallow.threshold, shallow.for_ns, shallow.min_evidence) == ("below", 0.5, 0, None)
    assert (shallow.window, shallow.severity, shallow.kind) == (RuleWindow(300 * S), "warning", "hint")


def test_the_example_is_what_is_built_in(tmp_path: Path) -> None:
    rules = built_in_rules()
    assert load_rules(written(tmp_path, example())).rules == rules
    assert {"trainers_idle", "samplers_idle", "stale_tokens", "worker_silent"} <= {rule.name for rule in rules.rules}


DEPTH = '[[rules]]\nname = "a"\nmetric = "queue.depth"\nabove = 1\n'
MISTAKES = [
    ('[[rules]]\nname = "a"\nmetrc = "queue.depth"', "rules[0].metrc", "key 'metrc'", "Did you mean 'metric'?"),
    ('[[rules]]\nname = "a"\nmetric = "queue.dept"\nabove = 1', "rules[0].metric", "'queue.dept'", "'queue.depth'"),
    ('[[rules]]\nname = "a"\nmetric = "queue.depth"\nabove = true', "rules[0].above", "True", "a number"),
    (DEPTH + 'below = 2', "rules[0].below", "both above and below", "one of"),
    ('# c\n[[rules]]\nname = "a"\nmetric = "queue.depth"', "rules[0]", "neither above nor below", "one of"),
    ('[[rules]]\nname = "a"\nabove = 1', "rules[0].metric", "no such key", "a non-empty string"),
    (DEPTH + 'window = "5 min"', "rules[0].window", "'5 min'", "such as 30s"),
    (DEPTH + 'for = 300', "rules[0].for", "300", "with a unit"),
    (DEPTH + 'kind = "hnt"', "rules[0].kind", "'hnt'", "mean 'hint'?"),
    ("warm_up_steps = -1", "warm_up_steps", "-1", "at least 0"),
    (DEPTH + '[rules.labels]\nseverity = "fatal"', "rules[0].labels.severity", "'fatal'", ""),
    (DEPTH + 'labels = { n = 1 }', "rules[0].labels.n", "1", "a string"),
    (DEPTH + 'annotations = {s="{vale}"}', "rules[0].annotations.s", "'vale'", "'value'"),
    (DEPTH + 'annotations = { s = "{" }', "rules[0].annotations.s", "'{'", "in braces"),
    (DEPTH + '[[rules]]\nname = "a"\nmetric = "kv.used_ratio"\nabove = 1',
     "rules[1].name", "'a'", "a name of its own"),
    ('\ninterval = "0s"', "interval", "'0s'", "at least 1s"),
    ("rules = 3", "rules", "3", "a list of tables"),
    ("rules = []", "rules", "[]", "at least one rule"),
    ('[[rules]]\nname = "a"\nmetric = "idle.trainer_ratio"\nabove = 30', "rules[0].above", "30", "30% is 0.3"),
    ('[[rules]]\nname = "a"\nmetric = "idle.trainer_ratio"\nbelow = -0.01', "rules[0].below", "-0.01", "0 to 1"),
    (DEPTH + f'window = "{"9" * 400} steps"', "rules[0].window", "str of 408 characters", "such as `20 steps`"),
    (f"warm_up_steps = {10**12 + 1}", "warm_up_steps", "1000000000001", "at most 1e+12"),
    (DEPTH.replace("1", "1e999"), "rules[0].above", "inf", "at most 1e+18"),
    (DEPTH.replace("1", "nan"), "rules[0].above", "nan", "at most 1e+18"),
    ('[[rules]]\nname = " "\nmetric = "queue.depth"\nabove = 1', "rules[0].name", "' '", "a non-empty string"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "key", "found", "help_"), MISTAKES)
def test_a_mistake_names_the_file_the_key_and_what_was_meant(
    tmp_path: Path, text: str, key: str, found: str, help_: str
) -> None:
    path = written(tmp_path, text)
    with pytest.raises(RuleError) as error:
        load_rules(path)
    message = str(error.value)
    assert message.startswith(f"{path}, {key}: found ") and found in message and help_ in message


def test_a_file_that_names_no_rules_leaves_the_built_in_ones_in_force(tmp_path: Path) -> None:
    receivers = '[[receivers]]\nname = "own"\nkind = "command"\ncommand = ["logger"]\n'
    for text, name in (("", "empty.toml"), (receivers, "receivers.toml")):
        assert load_rules(written(tmp_path, text, name)).rules == built_in_rules()
    held, _ = load_rules(written(tmp_path, 'interval = "30s"\nwarm_up_steps = 7\n'))
    assert (held.interval_ns, held.warm_up_steps, held.rules) == (30 * S, 7, built_in_rules().rules)


def test_a_one_off_is_critical_and_asks_about_the_whole_run() -> None:
    for text in ("idle.trainer_ratio < 0.25", "idle.trainer_ratio<0.25", " idle.trainer_ratio <0.25 "):
        rule = one_off(text)
        assert (rule.metric, rule.direction, rule.threshold) == ("idle.trainer_ratio", "below", 0.25)
        assert (rule.severity, rule.window, rule.for_ns) == ("critical", WHOLE_RUN, 0)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("idle.trainer_ratio >= 0.3", "no METRIC > NUMBER"),
        ("idle.trainer_ratio=>0.3", "no METRIC > NUMBER"),
        ("idle.trainer_ratio > 30%", "no METRIC > NUMBER"),
        ("idle.trainer_ratio > nan", "no METRIC > NUMBER"),
        ("queue.depth > 1e999", "no METRIC > NUMBER"),
        ("idle.trainer_ratio > 1.01", "30% is 0.3"),
        ("idle.trainer > 0.3", "Did you mean 'idle.trainer_ratio'"),
    ],
)
def test_a_one_off_that_is_no_rule_is_refused(text: str, found: str) -> None:
    with pytest.raises(RuleError, match=found):
        one_off(text)


@pytest.mark.parametrize("text", ["idle.trainer_ratio > 1", "idle.trainer_ratio > 0", "queue.depth > 30"])
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
    rules, _ = rules_in(parse_source(shown, "alerts.md", RULE_FILE))
    assert [rule.name for rule in rules.rules] == ["trainers_idle", "queue_empty"]
