"""Rules whose window or `for` is longer than the run: judged once, over all of it after warm-up, and marked so."""

import json
from pathlib import Path
from typing import Any

import pytest

import rlscope
from rlscope.alerts.config import built_in_rules
from rlscope.alerts.offline import RuleReport
from rlscope.alerts.types import WHOLE_RUN, Rule, RuleSet, RuleWindow
from rlscope.pipeline import check
from rlscope.reports.check import as_json, as_text
from rlscope.reports.text.rules import stretch
from tests.alerts.given import S, rule, run_of
from tests.trace_folder import activity, delivery_row, sample_row, train_row, worker, write_run

TRACES = Path(__file__).parents[2] / "sample_traces"
LONG = RuleWindow(600 * S)


def idle(window: RuleWindow = LONG, above: float = 0.5, **more: Any) -> Rule:
    return rule("idle", "idle.trainer_ratio", above, window, **more)


def judged(folder: Path, rule: Rule, warm_up_steps: int = 0) -> RuleReport:
    return check(folder, RuleSet((rule,), 10 * S, warm_up_steps))


def test_a_run_shorter_than_the_window_is_judged_once_over_all_of_it(tmp_path: Path) -> None:
    """Idle for 20 of the first 20 s, which the first tick would see, and for 32 of all 60 s."""
    report = judged(run_of(tmp_path, (0, 20), (40, 52)), idle(for_ns=300 * S))
    (outcome,) = report.rules
    assert (outcome.evaluated_ticks, outcome.ticks, outcome.evaluated_over_s) == (1, 6, 60.0)
    (alert,) = outcome.alerts
    assert (alert.value, alert.start_ns, alert.end_ns) == (32 / 60, 0, None)
    document = json.loads(as_json(report, "critical"))
    assert [each["evaluated_over_s"] for each in (*document["rules"], *document["alerts"])] == [60.0, 60.0]
    quiet = judged(run_of(tmp_path / "half", (0, 20), (40, 50)), idle())
    assert quiet.alerts == ()
    said = "did not fire over the whole run, which is shorter than their windows: idle"
    assert said in as_text(quiet, "critical")


@pytest.mark.parametrize(
    ("rule", "warm_up_steps", "evaluated_over_s"),
    [
        # A window as long as the run keeps its ticks.
        (idle(RuleWindow(60 * S)), 0, None),
        (idle(RuleWindow(61 * S)), 0, 60.0),
        # So does a condition that can hold from the first tick, at 10 s, to the last.
        (idle(RuleWindow(10 * S), for_ns=50 * S), 0, None),
        (idle(RuleWindow(10 * S), for_ns=51 * S), 0, 60.0),
        # Of six steps, the second ends warm-up, at 15 s, between two ticks. A window needs as many as it counts.
        (idle(RuleWindow(None, 4)), 2, None),
        (idle(RuleWindow(None, 5)), 2, 45.0),
    ],
)
def test_a_rule_is_judged_as_a_whole_if_the_run_is_too_short_for_its_ticks(
    tmp_path: Path, rule: Rule, warm_up_steps: int, evaluated_over_s: float | None
) -> None:
    folder = run_of(tmp_path, (0, 60), steps_s=(5, 15, 25, 35, 45, 55))
    (outcome,) = judged(folder, rule, warm_up_steps).rules
    assert (outcome.evaluated_over_s, len(outcome.alerts)) == (evaluated_over_s, 1)


def test_warm_up_is_left_out(tmp_path: Path) -> None:
    folder = run_of(tmp_path, (0, 20), (30, 55), steps_s=(5, 15, 25))
    (alert,) = judged(folder, idle(), warm_up_steps=2).alerts
    assert (alert.value, alert.start_ns, alert.evaluated_over_s) == (30 / 45, 15 * S, 45.0)
    # A rule that is stated over the whole run counts from the first tick after it.
    (alert,) = judged(folder, idle(WHOLE_RUN), warm_up_steps=2).alerts
    assert (alert.value, alert.start_ns, alert.evaluated_over_s) == (25 / 40, 60 * S, None)
    assert judged(folder, idle(), warm_up_steps=4).rules[0].evaluated_ticks == 0


@pytest.mark.parametrize(("tokens", "is_judged"), [(999, False), (1000, True)])
def test_a_short_run_needs_the_evidence_of_the_metric_too(tmp_path: Path, tokens: int, is_judged: bool) -> None:
    folder = write_run(
        tmp_path,
        [worker("t0", stop_ns=20 * S)],
        samples=[sample_row("a", "t0", [(0, 0, tokens)])],
        deliveries=[delivery_row("a", "t0", "dropped_stale", taken_ns=S)],
    )
    (outcome,) = judged(folder, rule("dropped", "dropped_stale_ratio", 0.1, LONG, min_evidence=None)).rules
    assert (outcome.evaluated_ticks, len(outcome.alerts)) == (is_judged, is_judged)


@pytest.mark.parametrize(("kind", "fired"), [("hint", ["silent"]), ("alarm", ["idle", "silent"])])
def test_a_hint_is_held_back_while_the_data_is_in_doubt_at_the_end(tmp_path: Path, kind: str, fired: list[str]) -> None:
    dead = worker("e0", "sampler", 0, None, last_flush_ns=30 * S)
    folder = run_of(tmp_path, (0, 60), steps_s=(5, 15), workers=(dead,))
    silent = rule("silent", "worker.silent_s", 20, RuleWindow(S), kind="data_quality")
    report = check(folder, RuleSet((silent, idle(kind=kind)), 10 * S, 1))
    assert sorted(alert.rule for alert in report.alerts) == fired


def test_a_metric_without_a_window_keeps_its_ticks(tmp_path: Path) -> None:
    """Steps that end every 5 s, and then none for 30 s, in the middle of the run."""
    steps_s = (5, 10, 15, 20, 25, 55, 60)
    overdue = rule("late", "step.overdue_periods", 4, LONG, kind="alarm")
    (alert,) = judged(run_of(tmp_path, steps_s=steps_s), overdue).alerts
    assert (alert.start_ns, alert.end_ns, alert.evaluated_over_s) == (50 * S, 60 * S, None)


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        (idle(), "evaluated as a whole (1 min after warm-up): the run is shorter than the rule's 10m window"),
        (idle(kind="data_quality"), "evaluated as a whole (1 min): the run is shorter than the rule's 10m window"),
        (
            idle(RuleWindow(10 * S), for_ns=300 * S),
            "evaluated as a whole (1 min after warm-up): the run is too short for 5m of the condition over 10s",
        ),
    ],
)
def test_the_text_says_what_was_judged_and_why(tmp_path: Path, rule: Rule, words: str) -> None:
    report = judged(run_of(tmp_path, (0, 60)), rule)
    (alert,) = report.alerts
    assert stretch(rule, alert, report.start_ns, report.end_ns) == words
    text = as_text(report, "critical")
    assert f"WARNING   idle  {words}" in text
    assert "idle.trainer_ratio over the whole run > 50.0%: 100%" in text


def test_a_rule_stated_over_the_whole_run_is_judged_in_a_run_that_ends_before_the_first_tick_after_warm_up(
    tmp_path: Path,
) -> None:
    """Warm-up ends at 2 s, the run at 9 s, and ticks are 10 s apart: 4 of 7 s were waits."""
    folder = run_of(tmp_path, (0, 2), (3, 7), stop_s=9, steps_s=(2, 9))
    (outcome,) = judged(folder, idle(WHOLE_RUN), warm_up_steps=1).rules
    assert (outcome.evaluated_ticks, outcome.evaluated_over_s) == (1, None)
    assert [alert.value for alert in outcome.alerts] == [4 / 7]
    (quiet,) = judged(folder, idle(WHOLE_RUN, above=0.6), warm_up_steps=1).rules
    assert (quiet.evaluated_ticks, quiet.alerts) == (1, ())


def test_no_built_in_rule_of_a_short_run_is_left_unjudged_for_its_length() -> None:
    report = rlscope.check(TRACES / "pipeline")
    assert report.unjudged == ()
    longer = {rule.name for rule in built_in_rules().rules if rule.metric not in ("worker.silent_s",)}
    whole = {outcome.rule.name for outcome in report.rules if outcome.evaluated_over_s is not None}
    assert whole == longer - {"rows_dropped", "rows_missing", "steps_stalled", "weight_updates_stalled"}


@pytest.mark.parametrize(("waited_s", "fires"), [(900, False), (901, True)])
def test_a_worker_without_recorded_work_for_over_a_quarter_of_an_hour_is_named(
    waited_s: int, fires: bool, tmp_path: Path
) -> None:
    steps = [train_row("t0", 10 * S * step, 10 * S * (step + 1), step) for step in range(6)]
    waits = [activity("t0", 60 * S, (60 + waited_s) * S, "wait", "samples")]
    work = [activity("t0", (60 + waited_s) * S, 4000 * S, "eval")]
    run = write_run(
        tmp_path / "run", [worker("t0", "trainer", 0, 4000 * S)], train_steps=steps, activities=waits + work
    )
    fired = [alert for alert in rlscope.check(run).alerts if alert.rule == "worker_idle"]
    assert bool(fired) == fires
    assert [alert.annotations["summary"] for alert in fired] == fires * [
        "no work recorded for the GPUs of t0 for 15 min 1 s"
    ]
