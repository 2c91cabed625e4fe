"""Who is told of alerts, as facts. Reading them from a file is the business of `receivers`."""

from dataclasses import dataclass
from typing import Final, Literal

from rlscope.alerts.alert import Severity
from rlscope.alerts.secret import Source

ReceiverKind = Literal["webhook", "alertmanager", "slack", "apprise", "command"]
KINDS: Final[tuple[ReceiverKind, ...]] = ("webhook", "alertmanager", "slack", "apprise", "command")

TIMEOUT_S: Final = 10.0
"""Longer than any healthy receiver takes, shorter than two looks at a run."""
GROUP_INTERVAL_S: Final = 30.0
"""What comes up together is told together: one message, not five."""
ALERTMANAGER_REPEAT_S: Final = 60.0
"""Alertmanager takes an alert for resolved once its end has passed, so what fires is posted again and again."""


@dataclass(frozen=True, slots=True)
class Receiver:
    """One receiver of notifications."""

    name: str
    kind: ReceiverKind
    address: Source | None = None
    """Where to post; None for a command."""
    argv: tuple[str, ...] = ()
    """The command and its arguments; empty for every other kind."""
    token: Source | None = None
    """Sent as a bearer token; None sends none."""
    severity: Severity = "info"
    """The least grave alert that is sent."""
    group_by: tuple[str, ...] = ("alertname",)
    """Alerts that agree in these labels share a message; `alertname` is the rule."""
    timeout_s: float = TIMEOUT_S
    group_interval_s: float = GROUP_INTERVAL_S
    """Least time between two messages about one group."""
    repeat_s: float | None = None
    """How often what still fires is sent again; None is once."""
    send_resolved: bool = True
    max_alerts: int = 100
    """Most alerts in a message; the rest is counted in it."""
