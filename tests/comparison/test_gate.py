"""`rlscope check --baseline`: thresholds that are a baseline's own values, and rules against regressions."""

import json
from pathlib import Path

import pytest

import rlscope
from rlscope.alerts.config import built_in_rules
from rlscope.comparison.gate import REGRESSIONS, BaselineRule, baseline_rule
from rlscope.errors import AnalysisError, RuleError
from tests.comparison.conftest import TRACES
from tests.trace_folder import activity, delivery_row, sample_row, train_row, worker, write_run

SECOND = 10**9
SLOW, FAST = TRACES / "starved_trainer", TRACES / "starved_trainer_after"
RATE = "throughput.steady_tokens_per_s"
BUILT_IN = [rule.name for rule in built_in_rules().rules]
REGRESSED = [each.name for each in REGRESSIONS]
AGAINST = f"{RATE} < 0.95 * baseline"


def run_of(folder: Path, tokens: int, wait_s: float = 0.0, steps: int = 24) -> Path:
    """A step of so many tokens every two seconds, the first part of it spent waiting."""
    return write_run(
        folder,
        [worker("e0", "sampler", 0, 2 * steps * SECOND), worker("t0", "trainer", 0, 2 * steps * SECOND)],
        samples=[sample_row(f"s{n}", "e0", [(n - 1, 0, tokens)]) for n in range(1, steps + 1)],
        deliveries=[delivery_row(f"s{n}", "t0", step=n, consumer_version=n) for n in range(1, steps + 1)],
        train_steps=[
            train_row("t0", 2 * n * SECOND - SECOND, 2 * n * SECOND, n, samples=1, tokens=tokens)
            for n in range(1, steps + 1)
        ],
        activities=[
            activity("t0", (2 * n - 2) * SECOND, round((2 * n - 2 + wait_s) * SECOND), "wait", "samples")
            for n in range(1, steps + 1)
            if wait_s
        ],
    )


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        (AGAINST, (RATE, "below", 0.95, 0.0)),
        (f"{RATE}<.95*baseline", (RATE, "below", 0.95, 0.0)),
        ("idle.trainer_ratio > baseline + 0.1", ("idle.trainer_ratio", "above", 1.0, 0.1)),
        ("queue.depth > 2 * baseline - 3e0", ("queue.depth", "above", 2.0, -3.0)),
        ("staleness.tokens.p95 > baseline", ("staleness.tokens.p95", "above", 1.0, 0.0)),
    ],
)
def test_a_rule_names_the_baseline_with_a_factor_and_an_offset(text: str, rule: tuple[object, ...]) -> None:
    found = baseline_rule(text)
    assert (found.metric, found.direction, found.factor, found.offset) == rule
    assert (found.name, found.severity) == (text, "critical")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (f"{RATE} < baseline * 0.95", "a baseline in another form"),
        (f"{RATE} = baseline", "a baseline in another form"),
        (f"{RATE} < 0.95 * baseline * 2", "a baseline in another form"),
        ("throughput.rate < baseline", "unknown metric 'throughput.rate'"),
    ],
)
def test_a_rule_in_another_form_is_refused_with_the_forms_that_are_taken(text: str, found: str) -> None:
    with pytest.raises(RuleError, match=found.replace("*", r"\*")):
        baseline_rule(text)


def test_a_rule_that_names_a_baseline_needs_one() -> None:
    with pytest.raises(RuleError, match="expected --baseline with the folder of a run"):
        rlscope.check(SLOW, fail_if=AGAINST)


@pytest.mark.parametrize(("tokens", "fails"), [(94, True), (95, False), (96, False)])
def test_a_rate_on_the_threshold_does_not_fail(tmp_path: Path, tokens: int, fails: bool) -> None:
    before, after = run_of(tmp_path / "a", 100), run_of(tmp_path / "b", tokens)
    report = rlscope.check(after, fail_if=AGAINST, baseline=before)
    assert report.failed() is fails
    (outcome,) = report.rules
    assert outcome.rule.threshold == pytest.approx(0.95 * 50)


@pytest.mark.parametrize(
    ("fail_if", "names"),
    [
        ((), [*BUILT_IN, *REGRESSED]),
        ("queue.depth > 100000", ["queue.depth > 100000", *REGRESSED]),
        (AGAINST, [AGAINST]),
        (["queue.depth > 100000", AGAINST], ["queue.depth > 100000", AGAINST]),
    ],
)
def test_rules_of_each_kind_replace_the_built_in_ones_and_no_regression_fires_for_a_run_against_itself(
    fail_if: str | list[str], names: list[str]
) -> None:
    report = rlscope.check(SLOW, fail_if=fail_if, baseline=SLOW)
    assert [outcome.rule.name for outcome in report.rules] == names
    assert not {alert.rule for alert in report.alerts} & {*REGRESSED, AGAINST}


def test_a_slower_run_fails_and_says_so_in_every_form_and_a_faster_one_does_not() -> None:
    slower, faster = rlscope.check(SLOW, baseline=FAST), rlscope.check(FAST, baseline=SLOW)
    assert slower.failed() and not faster.failed()
    assert {"throughput_regressed", "trainers_more_idle"} <= {alert.rule for alert in slower.alerts}
    assert "staleness_regressed" in {alert.rule for alert in faster.alerts}  # p95 is 3 versions against 1.
    (alert,) = (alert for alert in slower.alerts if alert.rule == "throughput_regressed")
    assert "in the baseline starved_trainer_after" in alert.annotations["baseline"]
    assert "is allowed for step-to-step noise" in alert.annotations["baseline"]
    assert all("4.85k tokens/s in the baseline" in slower.to_text(form) for form in ("text", "json", "markdown"))


def test_runs_without_noise_keep_the_threshold_of_five_percent(tmp_path: Path) -> None:
    before, after = run_of(tmp_path / "a", 100), run_of(tmp_path / "b", 94)
    (outcome,) = (each for each in rlscope.check(after, baseline=before).rules if each.rule.metric == RATE)
    assert outcome.rule.threshold == pytest.approx(0.95 * 50) and outcome.alerts


@pytest.mark.parametrize(("wait_s", "fires"), [(0.25, True), (0.2, False)])
def test_idleness_is_a_regression_beyond_a_tenth_of_the_gpu_time(tmp_path: Path, wait_s: float, fires: bool) -> None:
    before, after = run_of(tmp_path / "a", 100), run_of(tmp_path / "b", 100, wait_s)
    fired = {alert.rule for alert in rlscope.check(after, baseline=before).alerts}
    assert ("trainers_more_idle" in fired) is fires


def test_a_document_is_a_baseline_for_what_it_holds(before: rlscope.Analysis, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(before.to_json())
    rules = [AGAINST, "queue.depth > baseline"]
    report = rlscope.check(FAST, fail_if=rules, baseline=tmp_path / "a.json")
    assert not report.failed()
    assert [outcome.rule.name for outcome in report.unjudged] == [rules[1]]
    assert any("has no value of queue.depth" in note for note in report.warnings)
    assert all("queue.depth" in report.to_text(form) for form in ("text", "json", "markdown"))
    assert report.rules[0].rule.threshold == pytest.approx(0.95 * (before.throughput.steady_tokens_per_s or 0))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", "Invalid JSON"),
        ("[]", "Input should be"),
        ('{"schema_version": 2}', "schema_version: Input should be 1"),
        ('{"schema_version": 1}', "run: Field required"),
    ],
)
def test_a_file_that_is_no_such_document_is_refused_with_its_first_fault(text: str, found: str, tmp_path: Path) -> None:
    (tmp_path / "no.json").write_text(text)
    with pytest.raises(rlscope.RlscopeError, match=found) as refused:
        rlscope.check(FAST, baseline=tmp_path / "no.json")
    assert "rlscope analyze RUN_DIR --json FILE" in str(refused.value)


def test_a_rate_with_prompts_is_no_baseline_for_one_without(before: rlscope.Analysis, tmp_path: Path) -> None:
    document = json.loads(before.to_json())
    document["throughput"]["counted_tokens"] = 37_980
    document["later"] = {"key": 1}
    (tmp_path / "a.json").write_text(json.dumps(document))
    report = rlscope.check(FAST, baseline=tmp_path / "a.json")
    assert "has no value of throughput.steady_tokens_per_s" in report.to_text("text")
    with pytest.raises(AnalysisError, match=r"no value that .*starved_trainer_after has too, of throughput"):
        rlscope.check(FAST, fail_if=AGAINST, baseline=tmp_path / "a.json")


def test_a_run_without_data_passes_no_gate_and_is_no_baseline(tmp_path: Path) -> None:
    empty = write_run(tmp_path, [worker("t0", "trainer", 0, SECOND)])
    for run, baseline in ((empty, FAST), (FAST, empty)):
        with pytest.raises(AnalysisError, match="expected two runs that recorded at least one of them"):
            rlscope.check(run, baseline=baseline)


def test_braces_in_the_name_of_a_run_are_text() -> None:
    rule = BaselineRule("r", RATE, "below").rule(5.0, "the baseline {value}")
    assert rule.annotations["baseline"].format_map({}) == "5 tokens/s in the baseline {value}"
