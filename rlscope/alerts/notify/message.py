"""What one notification is about: the alerts of one group, for one receiver. No wording, no transport."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from rlscope.alerts.alert import Alert

Status = Literal["firing", "resolved"]


@dataclass(frozen=True, slots=True)
class Message:
    """The alerts of one group at one moment."""

    receiver: str
    group_labels: Mapping[str, str]
    alerts: tuple[Alert, ...]
    """Those that fire, and those whose end the receiver has not been told; never empty."""
    now_ns: int
    """When it was put together, UTC epoch."""

    @property
    def group_key(self) -> str:
        """One text for the group, the same for every message about it."""
        labels = ", ".join(f"{name}={json.dumps(value)}" for name, value in sorted(self.group_labels.items()))
        return f"{{}}:{{{labels}}}"

    @property
    def status(self) -> Status:
        """Firing as long as one of the alerts is."""
        return "resolved" if all(alert.end_ns is not None for alert in self.alerts) else "firing"


class DeliveryError(Exception):
    """A receiver did not take a message; the text is ours alone, so that nothing secret can be in it."""

    def __init__(self, sentence: str, retry_after_s: float | None = None) -> None:
        super().__init__(sentence)
        self.retry_after_s = retry_after_s
        """How long the receiver asks to be left alone; None when it does not say."""


def all_labels(alert: Alert) -> dict[str, str]:
    """The labels of an alert as Alertmanager knows them: the rule's name is one of them."""
    return {**alert.labels, "alertname": alert.rule, "severity": alert.severity}
