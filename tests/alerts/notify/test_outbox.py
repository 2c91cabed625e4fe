import json

import pytest

from rlscope.alerts.notify.outbox import Outbox, of_run
from rlscope.analysis.result import Alert
from tests.alerts.notify.given import alert, at, receiver


def outbox(*alerts: Alert, **changes: object) -> Outbox:
    box = Outbox(receiver(**changes))
    box.take(alerts)
    return box


def deliver(box: Outbox, seconds: float) -> list[list[tuple[str, str]]]:
    """The messages due then, each as (rule, status), all of them taken."""
    messages = box.due(at(seconds))
    for each in messages:
        box.arrived(each, at(seconds))
    return [[(a.rule, "firing" if a.end_ns is None else "resolved") for a in each.alerts] for each in messages]


FIRING, RESOLVED = [[("starved", "firing")]], [[("starved", "resolved")]]
STORIES = {
    "an alert is told once when it fires and once when it ends": [
        (0, [alert()], FIRING),
        (100, [alert(value=0.9)], []),
        (200, [alert(end_s=200)], RESOLVED),
        (300, [alert(end_s=200)], []),
    ],
    "an alert that fires again is told again": [
        (0, [alert()], FIRING),
        (50, [alert(end_s=50)], RESOLVED),
        (90, [alert(start_s=90)], FIRING),
    ],
    "an alert that ended and fired again between two looks goes on firing": [
        (0, [alert()], FIRING),
        (90, [alert(start_s=90), alert(end_s=50)], []),
        (200, [alert(start_s=90, end_s=200)], RESOLVED),
    ],
    "what had ended when it was first seen is old news": [(60, [alert(end_s=50)], [])],
}


@pytest.mark.parametrize("looks", STORIES.values(), ids=STORIES)
def test_what_is_told_after_each_look(looks: list[tuple[float, list[Alert], list[list[tuple[str, str]]]]]) -> None:
    box = outbox()
    for seconds, alerts, told in looks:
        box.take(alerts)
        assert deliver(box, seconds) == told, seconds


def test_what_ends_while_the_receiver_is_down_is_told_as_ended() -> None:
    box = outbox(alert())
    box.failed(box.due(at(0))[0], at(0))
    box.take([alert(end_s=50)])
    assert deliver(box, 60) == RESOLVED
    assert deliver(box, 600) == []


def test_what_ends_while_its_message_is_on_its_way_is_told_as_ended_next() -> None:
    box = outbox(alert())
    (on_its_way,) = box.due(at(0))
    box.take([alert(end_s=5)])
    box.arrived(on_its_way, at(6))
    assert deliver(box, 36) == RESOLVED


def test_what_fires_again_while_word_of_its_end_is_on_its_way_is_told_again() -> None:
    box = outbox(alert())
    deliver(box, 0)
    box.take([alert(end_s=50)])
    (on_its_way,) = box.due(at(50))
    box.take([alert(start_s=55)])
    box.arrived(on_its_way, at(56))
    assert deliver(box, 86) == FIRING


@pytest.mark.parametrize(("seconds", "messages"), [(29.9, 0), (30, 1)])
def test_news_of_a_group_waits_for_its_interval_and_then_comes_in_one_message(seconds: float, messages: int) -> None:
    box = outbox(alert(), group_by=("run",), group_interval_s=30.0)
    deliver(box, 0)
    box.take([alert(), alert("stale", 5), alert("silent", 6)])
    assert len(box.due(at(seconds))) == messages
    assert len(box.due(at(seconds), at_once=True)) == 1
    if messages:
        assert deliver(box, seconds) == [[("starved", "firing"), ("stale", "firing"), ("silent", "firing")]]


def test_a_clock_that_is_set_back_does_not_hold_news_up() -> None:
    box = outbox(alert(), group_by=(), group_interval_s=30.0)
    deliver(box, 0)
    box.take([alert(), alert("stale")])
    assert len(box.due(at(-3600))) == 1


def test_alerts_are_grouped_by_the_labels_that_the_receiver_names() -> None:
    alerts = [alert("a"), alert("b"), alert("a", labels={"severity": "warning", "run": "tuesday"})]
    assert len(deliver(outbox(*alerts, group_by=("alertname",)), 0)) == 2
    assert len(deliver(outbox(*alerts, group_by=("alertname", "run")), 0)) == 3
    assert len(deliver(outbox(*alerts, group_by=()), 0)) == 1
    assert len(deliver(outbox(*alerts, group_by=("unheard_of",)), 0)) == 1


@pytest.mark.parametrize(("floor", "told"), [("info", 3), ("warning", 2), ("critical", 1)])
def test_only_alerts_that_are_grave_enough_are_told(floor: str, told: int) -> None:
    alerts = [alert(severity, severity=severity) for severity in ("info", "warning", "critical")]
    assert len(deliver(outbox(*alerts, severity=floor), 0)) == told


def test_a_receiver_that_wants_no_ends_is_told_of_none() -> None:
    box = outbox(alert(), send_resolved=False)
    deliver(box, 0)
    box.take([alert(end_s=50)])
    assert deliver(box, 100) == []
    box.take([alert(start_s=200)])
    assert deliver(box, 200) == FIRING


@pytest.mark.parametrize(("seconds", "messages"), [(59.9, 0), (60, 1)])
def test_what_still_fires_is_told_again_where_the_receiver_wants_that(seconds: float, messages: int) -> None:
    box = outbox(alert(), repeat_s=60.0)
    deliver(box, 0)
    assert len(deliver(box, seconds)) == messages


def test_what_fires_no_more_though_nobody_said_that_it_ended_is_ended() -> None:
    box = outbox(alert("kept"), alert("gone"), group_by=())
    deliver(box, 0)
    box.close_missing({alert("kept").fingerprint}, at(70))
    assert deliver(box, 70) == [[("kept", "firing"), ("gone", "resolved")]]


def test_a_watch_that_starts_again_says_nothing_twice() -> None:
    box = outbox(alert("told"), alert("untold", 1), group_by=("alertname",))
    for each in box.due(at(0)):
        if each.alerts[0].rule == "told":
            box.arrived(each, at(0))
    again = Outbox(receiver())
    again.restore(json.loads(json.dumps(box.saved())))
    again.take([alert("told"), alert("untold", 1)])
    assert deliver(again, 60) == [[("untold", "firing")]]
    again.take([alert("told", end_s=100)])
    assert deliver(again, 100) == [[("told", "resolved")]]
    assert again.saved() == [] or deliver(again, 500) == []


def test_a_group_that_failed_lets_others_go_first() -> None:
    box = outbox(alert("a"), alert("b"))
    first, second = box.due(at(0))
    box.failed(first, at(0))
    assert [each.group_labels for each in box.due(at(1))] == [second.group_labels, first.group_labels]


def test_what_has_been_told_to_the_end_is_forgotten() -> None:
    box = outbox(*(alert(f"rule-{number}") for number in range(100)))
    deliver(box, 0)
    box.take([alert(f"rule-{number}", end_s=10) for number in range(100)])
    deliver(box, 60)
    assert (box.saved(), box.waiting) == ([], 0)


def test_two_runs_under_the_same_rules_are_told_apart() -> None:
    bare = alert(labels={"severity": "warning"})
    assert of_run(bare, "monday").fingerprint != of_run(bare, "tuesday").fingerprint
    assert of_run(alert(), "tuesday").labels["run"] == "monday"
