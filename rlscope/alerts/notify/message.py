"""One notification: the alerts for one receiver, and its text. No transport."""

from dataclasses import dataclass
from typing import Final, Literal

from rlscope.analysis.result import Alert
from rlscope.format import counted, duration, instant

Status = Literal["firing", "resolved"]
_MOST_LINES: Final = 20


@dataclass(frozen=True, slots=True)
class Message:
    """The alerts of one receiver at one time."""

    receiver: str
    alerts: tuple[Alert, ...]
    """Firing alerts, and resolved ones that the receiver was not notified about; never empty."""
    now_ns: int
    """When it was created, UTC epoch."""

    @property
    def status(self) -> Status:
        """Firing while any of the alerts is firing."""
        return "resolved" if all(alert.end_ns is not None for alert in self.alerts) else "firing"


class DeliveryError(Exception):
    """A message was not delivered. The text is written by rlscope only, so it contains no secret."""


def all_labels(alert: Alert) -> dict[str, str]:
    """The labels of an alert as Alertmanager expects them, with the rule's name as `alertname`."""
    return {**alert.labels, "alertname": alert.rule, "severity": alert.severity}


def title(message: Message) -> str:
    """The message in one line: [FIRING 2] trainers_idle, run monday."""
    firing = sum(alert.end_ns is None for alert in message.alerts)
    head = f"FIRING {firing}" if firing else "RESOLVED"
    rules = ", ".join(dict.fromkeys(alert.rule for alert in message.alerts))
    runs = ", ".join(dict.fromkeys(alert.labels["run"] for alert in message.alerts if "run" in alert.labels))
    return f"[{head}] {rules}" + (f", run {runs}" if runs else "")


def lines(message: Message) -> list[str]:
    """One line per alert, and a count of those that nobody would read in a chat."""
    shown = [_line(alert) for alert in message.alerts[:_MOST_LINES]]
    left = len(message.alerts) - len(shown)
    return [*shown, f"and {counted(left, 'alert')} more"] if left else shown


def _line(alert: Alert) -> str:
    text = alert.annotations.get("summary") or alert.annotations.get("description") or alert.rule
    state = alert.severity if alert.end_ns is None else "resolved"
    facts = [f"since {instant(alert.start_ns)}"]
    if alert.end_ns is not None:
        facts.append(f"for {duration((alert.end_ns - alert.start_ns) / 1e9)}")
    return f"{state}: {text} ({', '.join(facts)})"
