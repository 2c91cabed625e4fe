"""Messages sent to one receiver and the next one to send. Pure: no clock, no transport.

Each alert is sent twice: when it fires and when it is resolved. An alert that was already resolved when first seen is
not sent; one resolved while the receiver is down is sent once, as resolved. Alerts are tracked by fingerprint, so a
watch restarted with the saved state sends nothing twice.
"""

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Final

from rlscope.alerts.notify.message import Message
from rlscope.alerts.receiver import Receiver
from rlscope.analysis.result import Alert, at_least

_NS_PER_S = 1_000_000_000


@dataclass(slots=True)
class KnownAlert:
    """One alert, and whether the receiver was notified that it fires."""

    alert: Alert
    told: bool = False

    @property
    def is_news(self) -> bool:
        """Whether the receiver is still to be notified."""
        return self.alert.end_ns is not None or not self.told


@dataclass(frozen=True, slots=True)
class OutboxState:
    """State of one receiver, which a later watch resumes from."""

    sent_ns: int | None
    """When a message was last delivered; None before the first."""
    known: tuple[KnownAlert, ...]


NOTHING_SENT: Final = OutboxState(None, ())


class Outbox:
    """The messages of one receiver."""

    def __init__(self, receiver: Receiver, state: OutboxState = NOTHING_SENT) -> None:
        """Begin, or resume from the result of `saved`."""
        self.receiver = receiver
        self._known = {known.alert.fingerprint: known for known in state.known}
        """By fingerprint."""
        self._sent_ns = state.sent_ns

    def take(self, alerts: Collection[Alert], now_ns: int) -> None:
        """Accept the alerts of one poll: all that are firing, and those resolved since the last poll.

        A known alert that is not among them is resolved, because its rule was removed.
        """
        # A rule can be resolved and fire again between two polls: the later alert counts.
        for alert in sorted(alerts, key=lambda alert: alert.start_ns):
            if at_least(alert.severity, self.receiver.severity):
                self._take(alert)
        firing = {alert.fingerprint for alert in alerts if alert.end_ns is None}
        for fingerprint, known in list(self._known.items()):
            if known.alert.end_ns is None and fingerprint not in firing:
                self._take(replace(known.alert, end_ns=now_ns))

    def due(self, now_ns: int, *, at_once: bool = False) -> Message | None:
        """The message to send now: everything that fires, and what was resolved since the last one. None if none is.

        at_once: do not wait for more alerts to put into the same message.
        """
        if not self._is_due(now_ns, at_once):
            return None
        alerts = [known.alert for known in self._known.values()]
        # Those that fire come first.
        alerts.sort(key=lambda alert: (alert.end_ns is not None, alert.start_ns, alert.fingerprint))
        return Message(self.receiver.name, tuple(alerts), now_ns)

    @property
    def waiting(self) -> int:
        """Alerts with a notification still to be delivered."""
        return sum(known.is_news for known in self._known.values())

    def arrived(self, message: Message, now_ns: int) -> None:
        """A message was delivered."""
        self._sent_ns = now_ns
        for sent in message.alerts:
            known = self._known.get(sent.fingerprint)
            if known is None:
                continue
            if sent.end_ns is None:
                known.told = True
            elif known.alert.start_ns == sent.start_ns:
                del self._known[sent.fingerprint]
            else:
                known.told = False

    def saved(self) -> OutboxState:
        """Return the state that a later outbox resumes from."""
        return OutboxState(self._sent_ns, tuple(self._known.values()))

    def _take(self, alert: Alert) -> None:
        known = self._known.get(alert.fingerprint)
        if known is not None:
            known.alert = alert
        elif alert.end_ns is None:
            self._known[alert.fingerprint] = KnownAlert(alert)
        if alert.end_ns is not None and not self.receiver.send_resolved:
            self._known.pop(alert.fingerprint, None)

    def _is_due(self, now_ns: int, at_once: bool) -> bool:
        if self._sent_ns is None:
            return bool(self._known)
        since_s = (now_ns - self._sent_ns) / _NS_PER_S
        fires = any(known.alert.end_ns is None for known in self._known.values())
        if fires and self.receiver.repeat_s is not None and since_s >= self.receiver.repeat_s:
            return True
        # A clock that was set back must not delay notifications.
        return bool(self.waiting) and (at_once or not 0 <= since_s < self.receiver.interval_s)


def of_run(alert: Alert, run_id: str) -> Alert:
    """The alert with its run as a label, so that two runs with the same rules differ."""
    return alert if "run" in alert.labels else replace(alert, labels={**alert.labels, "run": run_id})
