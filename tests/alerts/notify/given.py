"""Alerts and messages as tests need them."""

from collections.abc import Callable
from typing import Any

from rlscope.alerts.notify.message import Message
from rlscope.alerts.receiver import Receiver, ReceiverKind
from rlscope.analysis.result import Alert
from tests.alerts.given import S

NOON_NS = 1_767_268_800 * S
"""2026-01-01 12:00:00 UTC."""


def at(seconds: float) -> int:
    """So many seconds after noon."""
    return NOON_NS + round(seconds * S)


def alert(rule: str = "starved", start_s: float = 0, end_s: float | None = None, **changes: Any) -> Alert:
    """A warning that fires from start_s after noon."""
    severity = changes.pop("severity", "warning")
    fields: dict[str, Any] = {
        "rule": rule,
        "severity": severity,
        "labels": {"severity": severity, "run": "monday"},
        "annotations": {"summary": f"{rule} since long"},
        "value": 0.5,
        "start_ns": at(start_s),
        "end_ns": None if end_s is None else at(end_s),
    }
    return Alert(**(fields | changes))


def message(*alerts: Alert, receiver: str = "oncall", now_s: float = 60) -> Message:
    return Message(receiver, alerts, at(now_s))


def receiver(kind: ReceiverKind = "webhook", url: str | None = None, **changes: Any) -> Receiver:
    return Receiver(**({"name": "oncall", "kind": kind, "url": url, "timeout_s": 5.0} | changes))


def at_once(work: Callable[[], None]) -> None:
    """Stands in for threads: the work is done when the call returns."""
    work()
