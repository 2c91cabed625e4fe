import pytest

from rlscope.alerts.notify.outbox import Outbox, of_run
from rlscope.analysis.result import Alert
from tests.alerts.notify.given import alert, at, receiver


def outbox(*alerts: Alert, **changes: object) -> Outbox:
    box = Outbox(receiver(**changes))
    box.take(alerts, at(0))
    return box


def deliver(box: Outbox, seconds: float, *meanwhile: Alert) -> list[tuple[str, str]]:
    """The message due then as (rule, status) of each alert; empty if none is. meanwhile: taken before it arrives."""
    message = box.due(at(seconds))
    if message is None:
        return []
    if meanwhile:
        box.take(meanwhile, at(seconds))
    box.arrived(message, at(seconds))
    return [(each.rule, "firing" if each.end_ns is None else "resolved") for each in message.alerts]


FIRING, RESOLVED = [("starved", "firing")], [("starved", "resolved")]
GRADES = [alert(severity, severity=severity) for severity in ("info", "warning", "critical")]
STORIES = {
    "an alert is told once when it fires and once when it ends": (
        {},
        [
            (0, [alert()], FIRING),
            (100, [alert(value=0.9)], []),
            (200, [alert(end_s=200)], RESOLVED),
            (300, [alert(end_s=200)], []),
        ],
    ),
    "an alert that ended and fired again between two looks goes on firing": (
        {},
        [
            (0, [alert()], FIRING),
            (90, [alert(start_s=90), alert(end_s=50)], []),
            (200, [alert(start_s=90, end_s=200)], RESOLVED),
        ],
    ),
    "what had ended when it was first seen is old news": ({}, [(60, [alert(end_s=50)], [])]),
    "only alerts that are grave enough are told": (
        {"severity": "warning"},
        [(0, GRADES, [("critical", "firing"), ("warning", "firing")])],
    ),
    "a receiver that wants no ends is told of none": (
        {"send_resolved": False},
        [(0, [alert()], FIRING), (100, [alert(end_s=50)], []), (200, [alert(start_s=200)], FIRING)],
    ),
    "what ends while its message is on its way is told as ended next": (
        {},
        [(0, [alert()], FIRING, alert(end_s=5)), (36, [alert(end_s=5)], RESOLVED)],
    ),
    "what ends on its way to a receiver that wants no ends is forgotten": (
        {"send_resolved": False, "repeat_s": 30.0},
        [(0, [alert()], FIRING, alert(end_s=5)), (60, [], [])],
    ),
    "what fires again while word of its end is on its way is told again": (
        {},
        [
            (0, [alert()], FIRING),
            (50, [alert(end_s=50)], RESOLVED, alert(start_s=55)),
            (86, None, FIRING),
        ],
    ),
    "what still fires is told again where the receiver wants that": (
        {"repeat_s": 60.0},
        [(0, [alert()], FIRING), (59.9, [alert()], []), (60, [alert()], FIRING)],
    ),
}


@pytest.mark.parametrize(("settings", "looks"), STORIES.values(), ids=STORIES)
def test_what_is_told_after_each_look(
    settings: dict[str, object], looks: list[tuple[float, list[Alert] | None, list[tuple[str, str]], Alert]]
) -> None:
    box = outbox(**settings)
    for seconds, alerts, told, *meanwhile in looks:
        if alerts is not None:
            box.take(alerts, at(seconds))
        assert sorted(deliver(box, seconds, *meanwhile)) == sorted(told), seconds


def test_news_waits_for_the_interval_and_then_comes_in_one_message() -> None:
    box = outbox(alert(), interval_s=30.0)
    deliver(box, 0)
    box.take([alert(), alert("stale", 5), alert("silent", 6)], at(60))
    assert box.due(at(29.9)) is None
    assert box.due(at(29.9), at_once=True) is not None
    assert box.due(at(-3600)) is not None, "a clock that is set back does not hold news up"
    assert deliver(box, 30) == [("starved", "firing"), ("stale", "firing"), ("silent", "firing")]


def test_two_runs_under_the_same_rules_are_told_apart() -> None:
    bare = alert(labels={"severity": "warning"})
    assert of_run(bare, "monday").fingerprint != of_run(bare, "tuesday").fingerprint
    assert of_run(alert(), "tuesday").labels["run"] == "monday"
