"""A run that is followed while it is written is judged as after its end; what comes late is corrected and said."""

import random
from dataclasses import replace
from pathlib import Path

import pytest
from pydantic import TypeAdapter

from rlscope.alerts.config import built_in_rules
from rlscope.alerts.live.facts import LiveView
from rlscope.alerts.live.follow import GRACE_NS, LiveRun, RunProgress
from rlscope.alerts.live.workers import GIVEN_UP_NS
from rlscope.alerts.types import RuleSet, RuleWindow
from rlscope.analysis.result import Alert
from rlscope.diagnose.straggling_engine import Straggler
from rlscope.pipeline import check
from tests.alerts.given import S, rule
from tests.alerts.live.growing_run import Growing, every_rule
from tests.trace_folder import Row, activity, engine_row, train_row, update_row, worker, write_rows, write_run

TRACE = Path("sample_traces/overproduction").resolve()
RULES = every_rule(S)
IDLE = RuleSet((rule("idle", "idle.trainer_ratio", 0.5, RuleWindow(10 * S), kind="alarm"),), 10 * S, warm_up_steps=0)


def followed(folder: Path, seed: int, *, restarts: bool, rules: RuleSet) -> list[Alert]:
    """Everything that fires while the run's flushes are written late, within the grace, and somebody polls."""
    rng, grace_ns, saved = random.Random(seed), 6 * S, TypeAdapter(RunProgress)
    growing = Growing(TRACE, folder, seed, grace_ns)
    live, now_ns, fired = LiveRun(folder, rules, grace_ns), growing.start_ns, list[Alert]()
    while True:
        now_ns += rng.randint(1, 6 * S)
        growing.write_until(now_ns)
        view = live.poll(now_ns)
        fired += [alert for alert in view.alerts if alert.end_ns is not None]
        assert view.problems == ()
        if view.ended:
            return fired + [alert for alert in view.alerts if alert.end_ns is None]
        if restarts and rng.random() < 0.4:
            live = LiveRun(folder, rules, grace_ns, state=saved.validate_json(saved.dump_json(live.saved())))


def by_start(alerts: list[Alert] | tuple[Alert, ...]) -> list[Alert]:
    """Out of how many rows capture dropped some, nobody knows before all are there."""
    known = (replace(alert, evidence=0) if alert.rule.startswith("rows.") else alert for alert in alerts)
    return sorted(known, key=lambda alert: (alert.start_ns, alert.rule))


def without_steps(rules: RuleSet) -> RuleSet:
    """Rules that need of the run no more than their windows, which are short."""
    windows = {rule.name: RuleWindow(rule.window.length_ns or 2 * rules.interval_ns) for rule in rules.rules}
    return replace(rules, rules=tuple(replace(rule, window=windows[rule.name]) for rule in rules.rules))


@pytest.mark.parametrize(
    ("shortened", "to_ns", "seed", "restarts", "rules"),
    [("CORRECTED_NS", 5 * S, 9, False, RULES), ("SHOWN_NS", S, 5, True, without_steps(RULES))],
    ids=["rows read again", "rows left out"],
)
def test_flushes_in_any_order_within_the_grace_are_judged_as_check_judges_them(
    tmp_path: Path,
    shortened: str,
    to_ns: int,
    seed: int,
    restarts: bool,
    rules: RuleSet,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(f"rlscope.alerts.live.follow.{shortened}", to_ns)
    expected = by_start(check(TRACE, rules).alerts)
    assert len({alert.rule for alert in expected}) > 20
    assert by_start(followed(tmp_path / "live", seed, restarts=restarts, rules=rules)) == expected


def test_a_long_run_that_is_met_at_its_end_is_judged_from_its_start() -> None:
    view = LiveRun(TRACE, RULES).poll(2 * 10**18)
    assert view.ended
    assert by_start(view.alerts) == by_start(check(TRACE, RULES).alerts)
    facts = view.facts
    assert [(side.role, side.workers, side.gpu_count) for side in facts.sides] == [("sampler", 1, 1), ("trainer", 1, 1)]
    assert facts.steps > 10 and facts.staleness is not None and facts.queue_depth_samples is not None
    assert sum(facts.sides[0].state_ratios.values()) == pytest.approx(1)


def test_a_watch_that_catches_up_keeps_what_the_longest_window_still_covers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The window is as long as the history; a quarter of an hour is caught up at a time."""
    monkeypatch.setattr("rlscope.alerts.live.follow.HISTORY_NS", 3600 * S)
    end_ns = 80 * 60 * S
    run = write_run(tmp_path / "run", [worker("t0", "trainer", 0, end_ns, rows={"activities": 2})])
    waits = [activity("t0", 0, 600 * S, "wait", "samples"), activity("t0", 600 * S, end_ns, "train")]
    write_rows(run, "activities", "t0", waits)
    idle = rule("idle", "idle.trainer_ratio", 0.5 * 600 / 3600, RuleWindow(3600 * S))
    rules = RuleSet((idle,), 60 * S, warm_up_steps=0)
    (alert,) = LiveRun(run, rules).poll(end_ns + GRACE_NS).alerts
    assert (alert.start_ns // S, alert.end_ns // S) == (60, 3600 + 300)


def seconds(view: LiveView) -> list[tuple[int, int | None]]:
    return [(each.start_ns // S, None if each.end_ns is None else each.end_ns // S) for each in view.alerts]


def growing(folder: Path, flushed_s: float, **counts: int) -> None:
    """The one trainer's file as it stands after a flush."""
    write_run(folder, [worker("t0", "trainer", 0, None, last_flush_ns=int(flushed_s * S), rows=counts)])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run folder without workers and rows."""
    return write_run(tmp_path / "run", [])


def test_a_tick_is_due_when_its_worker_recorded_something_after_it_or_when_the_grace_is_over(folder: Path) -> None:
    growing(folder, 9, activities=1)
    write_rows(folder, "activities", "t0", [activity("t0", 0, 9 * S, "wait", "samples")])
    live = LiveRun(folder, IDLE)
    assert (live.poll(11 * S).evaluated_ns, live.poll(10 * S + GRACE_NS - 1).evaluated_ns) == (None, None)
    view = live.poll(10 * S + GRACE_NS)
    assert (view.evaluated_ns, seconds(view), view.problems) == (10 * S, [(10, None)], ())
    growing(folder, 45, activities=2)
    write_rows(folder, "activities", "t0", [activity("t0", 30 * S, 45 * S, "wait", "samples")], sequence=2)
    # Two seconds before the end of its last row the worker's rows are surely whole: the tick at 40 s is due.
    assert live.poll(46 * S).evaluated_ns == 40 * S


def test_rows_that_come_after_their_tick_count_from_then_on_and_are_said(folder: Path) -> None:
    growing(folder, 60)
    live = LiveRun(folder, IDLE)
    view = live.poll(20 * S + GRACE_NS)
    assert (view.evaluated_ns, seconds(view)) == (20 * S, [])
    growing(folder, 60, activities=1)
    write_rows(folder, "activities", "t0", [activity("t0", 5 * S, 29 * S, "wait", "samples")])
    view = live.poll(30 * S + GRACE_NS)
    assert seconds(view) == [(30, None)]
    assert view.problems == ("1 row arrived late, by up to 15 s; only later ticks count late rows",)
    assert [each.start_ns // S for each in check(folder, IDLE).alerts] == [20]


def test_the_folder_may_appear_late_and_a_cut_off_file_is_tried_again_until_the_grace_is_over(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    live = LiveRun(folder, IDLE)
    view = live.poll(S)
    assert (view.facts, view.ended, len(view.problems)) == (None, False, 1)
    view = LiveRun(write_run(folder, []), IDLE).poll(S)
    assert view.problems == ("workers/: no readable worker file yet, so no GPU-second can be accounted for",)
    assert not view.ended
    write_run(folder, [worker("t0", "trainer", 0, 20 * S, rows={"activities": 1})])
    path = write_rows(folder, "activities", "t0", [activity("t0", 0, 20 * S, "wait", "samples")])
    whole = path.read_bytes()
    path.write_bytes(whole[:100])
    assert live.poll(21 * S).problems == ()
    path.write_bytes(whole)
    view = live.poll(22 * S)
    assert (view.ended, seconds(view)) == (True, [(10, None)])
    path.write_bytes(whole[:100])
    broken = LiveRun(folder, IDLE)
    broken.poll(21 * S)
    view = broken.poll(21 * S + GRACE_NS)
    assert "skipped activities/t0-000001.parquet" in view.problems[0]
    assert view.ended


def test_a_worker_that_falls_silent_is_named_and_a_run_of_which_nothing_is_heard_is_over(folder: Path) -> None:
    told = {"summary": "{worker} for {value}"}
    silent = rule("silent", "worker.silent_s", 60, RuleWindow(S), kind="data_quality", annotations=told)
    growing(folder, 30, train_steps=1)
    write_rows(folder, "train_steps", "t0", [train_row("t0", 0, 30 * S)])
    live = LiveRun(folder, RuleSet((silent,)))
    assert live.poll(90 * S + GRACE_NS).alerts == ()
    view = live.poll(100 * S + GRACE_NS)
    assert [alert.annotations["summary"] for alert in view.alerts] == ["t0 for 1 min 10 s"]
    assert view.facts.silent_s == {"t0": 100.0}
    assert not view.ended
    assert not live.poll(30 * S + GIVEN_UP_NS - 1).ended
    assert live.poll(30 * S + GIVEN_UP_NS).ended
    # However late somebody looks, it is judged no further.
    late = LiveRun(folder, RuleSet((silent,))).poll(9_000 * S)
    assert (late.ended, late.evaluated_ns) == (True, 30 * S + GIVEN_UP_NS)


def test_a_stuck_worker_is_named_once_its_phase_lasts_longer_than_the_watch_has_seen(folder: Path) -> None:
    def flushed(at_s: int) -> None:
        applying = {"doing": "apply", "version": 2, "since_ns": 40 * S}
        waiting = {"doing": "wait", "reason": "samples", "since_ns": 41 * S}
        recording = {"stop_ns": None, "last_flush_ns": at_s * S}
        engine = worker("e0", "sampler", rows={"weight_updates": 1}, open=[applying], **recording)
        write_run(folder, [engine, worker("t0", rows={"activities": 1}, open=[waiting], **recording)])

    write_rows(folder, "weight_updates", "e0", [update_row("e0", 30 * S, 38 * S, 1)])
    write_rows(folder, "activities", "t0", [activity("t0", 30 * S, 38 * S, "wait", "samples")])
    hint = replace(IDLE.rules[0], kind="hint", name="hint", annotations={"summary": "idle"})
    live = LiveRun(folder, replace(IDLE, rules=(*IDLE.rules, hint)))
    flushed(54)
    assert live.poll(40 * S + GRACE_NS).facts.stall is None
    flushed(56)
    view = live.poll(41 * S + GRACE_NS)
    assert view.facts.stall == {
        "waiting_worker_id": "t0",
        "waits_for": "samples",
        "waited_s": 15.0,
        "worker_id": "e0",
        "doing": "applying version 2",
        "stuck_s": 16.0,
        "moving_workers": 0,
    }
    assert {alert.rule: alert.annotations["summary"] for alert in view.alerts} == {
        "idle": "idle.trainer_ratio over 10s is 80.0%, above 50.0%; e0 is stuck: applying version 2",
        "hint": "idle",
    }


def test_an_engine_that_is_killed_after_the_training_ends_with_the_run_and_calls_nobody(folder: Path) -> None:
    ends_s = range(2, 30, 2)
    write_rows(folder, "train_steps", "t0", [train_row("t0", (end - 1) * S, end * S, end) for end in ends_s])

    def heard(stopped_s: int | None, engine_flushed_s: int) -> None:
        stop_ns = None if stopped_s is None else stopped_s * S
        engine = worker("e0", "sampler", 0, None, last_flush_ns=engine_flushed_s * S, rows={})
        trainer = worker("t0", "trainer", 0, stop_ns, last_flush_ns=28 * S, rows={"train_steps": len(ends_s)})
        write_run(folder, [engine, trainer])

    built_in = replace(built_in_rules(), interval_ns=S)
    live = LiveRun(folder, built_in)
    heard(None, 28)
    assert live.poll(30 * S).alerts == ()
    heard(31, 60)
    view = live.poll(60 * S + GRACE_NS - 1)
    assert (view.ended, view.alerts) == (False, ()), "the engine may go on, and no step is due"
    view = live.poll(60 * S + GRACE_NS)
    assert (view.ended, view.evaluated_ns, view.alerts) == (True, 60 * S, ())
    late = LiveRun(folder, built_in).poll(9_000 * S)
    assert (late.ended, late.evaluated_ns, late.alerts) == (True, 60 * S, ())
    assert check(folder, built_in).alerts == ()


def test_killed_workers_are_silent_until_they_are_started_again_and_then_end_with_the_run(folder: Path) -> None:
    def killed(name: str, role: str) -> Row:
        return worker(name, role, 0, None, last_flush_ns=28 * S)

    def again(name: str, role: str, stop_s: int | None) -> Row:
        stop_ns = None if stop_s is None else stop_s * S
        return worker(f"{name}.r1", role, 100 * S, stop_ns, last_flush_ns=200 * S, name=name)

    silent = RuleSet((rule("silent", "worker.silent_s", 60, RuleWindow(S), kind="data_quality"),))
    live = LiveRun(folder, silent)
    write_run(folder, [killed("e0", "sampler"), killed("t0", "trainer")])
    view = live.poll(90 * S + GRACE_NS)
    assert ([alert.rule for alert in view.alerts], view.ended) == (["silent"], False)
    write_run(folder, [again("e0", "sampler", None), again("t0", "trainer", None)])
    view = live.poll(200 * S)
    assert (seconds(view), view.ended, view.facts.silent_s) == ([(90, 100)], False, {})
    write_run(folder, [again("e0", "sampler", 210), again("t0", "trainer", 220)])
    assert live.poll(220 * S + GRACE_NS).ended
    assert check(folder, silent).alerts == ()


def test_an_engine_that_is_killed_after_the_training_calls_nobody_while_others_go_on(tmp_path: Path) -> None:
    killed = worker("e0", "sampler", 0, None, last_flush_ns=28 * S)
    trained = worker("t0", "trainer", 0, 31 * S)
    folder = write_run(tmp_path / "run", [killed, trained, worker("c0", "controller", 0, 200 * S)])
    assert check(folder, built_in_rules()).alerts == ()
    write_run(folder, [worker("c0", "controller", 0, None, last_flush_ns=150 * S)])
    live = LiveRun(folder, built_in_rules())
    silent = live.poll(28 * S + GRACE_NS - 1).facts.silent_s
    assert silent == {"e0": 29.999999999}
    view = live.poll(150 * S)
    assert (view.ended, view.alerts, view.facts.silent_s) == (False, (), {})


@pytest.mark.parametrize(("tokens", "slow"), [(80, Straggler("e0", 80.0, 100.0, 1.0)), (81, None)])
def test_an_engine_a_fifth_slower_than_the_median_is_among_the_facts(
    tmp_path: Path, tokens: int, slow: Straggler | None
) -> None:
    made = {"e0": tokens, "e1": 100, "e2": 130}
    rows = [engine_row(name, 0, S, decode_tokens=number) for name, number in made.items()]
    folder = write_run(tmp_path / "run", [worker(name, "sampler", 0, 10 * S) for name in made], engine_steps=rows)
    assert LiveRun(folder, IDLE).poll(11 * S).facts.straggler == slow


def test_what_is_long_past_is_let_go_and_what_is_new_is_judged_by_itself(folder: Path) -> None:
    """Eight hours, more than anything looks back at. The trainer waits a third of each, and two thirds of the last."""
    hour_s = 3600
    idle = replace(IDLE.rules[0], window=RuleWindow(hour_s * S))
    live = LiveRun(folder, replace(IDLE, rules=(idle,), interval_ns=hour_s * S))
    looks: list[tuple[list[tuple[int, int | None]], int]] = []
    for hour in range(8):
        starts_s = range(hour * hour_s, (hour + 1) * hour_s, 300)
        waited_s = 200 if hour == 7 else 100
        rows = [activity("t0", start * S, (start + waited_s) * S, "wait") for start in starts_s]
        write_rows(folder, "activities", "t0", rows, sequence=hour + 1)
        growing(folder, (hour + 1) * hour_s, activities=12 * (hour + 1))
        looks.append((seconds(view := live.poll((hour + 1) * hour_s * S + GRACE_NS)), live.held_rows))
        assert view.evaluated_ns == (hour + 1) * hour_s * S
    # A quarter of an hour is kept: three rows of it.
    assert looks == [([], 3)] * 7 + [([(8 * hour_s, None)], 3)]


def test_a_table_that_is_a_file_is_named_once_and_the_others_are_followed(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", [worker("t0", stop_ns=9 * S, rows={"train_steps": 1})])
    write_rows(folder, "train_steps", "t0", [train_row("t0", 0, 8 * S)])
    (folder / "samples").write_text("no folder")
    live = LiveRun(folder, IDLE)
    for now_ns in (10 * S, 60 * S):
        view = live.poll(now_ns)
    assert view.problems == ("samples: cannot be listed: Not a directory",)
    assert view.facts.steps == 1
