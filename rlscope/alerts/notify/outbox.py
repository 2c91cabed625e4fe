"""Messages sent to one receiver and the next ones to send. Pure: no clock, no transport.

Each alert is sent twice: when it fires and when it is resolved. An alert that was already resolved when first seen is
not sent; one resolved while the receiver is down is sent once, as resolved. Alerts are tracked by fingerprint, so a
watch restarted with the saved state sends nothing twice.
"""

from collections.abc import Iterable, Mapping, Set
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from rlscope.alerts.notify.message import Message, all_labels
from rlscope.alerts.receiver import Receiver
from rlscope.analysis.result import Alert, at_least

_NS_PER_S = 1_000_000_000

GroupKey = tuple[tuple[str, str], ...]
"""The labels shared by a group's alerts, sorted."""


@dataclass(slots=True)
class _Known:
    """One alert, and whether the receiver was notified that it fires."""

    alert: Alert
    told: bool = False


@dataclass(slots=True)
class _Group:
    known: dict[str, _Known] = field(default_factory=dict[str, _Known])
    """By fingerprint."""
    sent_ns: int | None = None
    """When a message about it was last delivered; None before the first."""
    tried_ns: int = 0


class Outbox:
    """The messages of one receiver."""

    def __init__(self, receiver: Receiver) -> None:
        self.receiver = receiver
        self._groups: dict[GroupKey, _Group] = {}

    def take(self, alerts: Iterable[Alert]) -> None:
        """Accept the alerts of one poll: those firing, and those resolved since the last poll."""
        # A rule can be resolved and fire again between two polls: the later alert counts.
        for alert in sorted(alerts, key=lambda alert: alert.start_ns):
            if at_least(alert.severity, self.receiver.severity):
                self._take(alert)

    def close_missing(self, firing: Set[str], now_ns: int) -> None:
        """Resolve alerts that are no longer among the firing fingerprints: their rule was removed."""
        for group in list(self._groups.values()):
            for fingerprint, known in list(group.known.items()):
                if known.alert.end_ns is None and fingerprint not in firing:
                    self._take(replace(known.alert, end_ns=now_ns))

    def due(self, now_ns: int, *, at_once: bool = False) -> list[Message]:
        """The messages to send now, least recently tried group first.

        at_once: do not wait for more alerts to put into the same message.
        """
        due = [(group.tried_ns, key) for key, group in self._groups.items() if self._is_due(group, now_ns, at_once)]
        return [self._message(key, now_ns) for _, key in sorted(due)]

    @property
    def waiting(self) -> int:
        """Alerts with a notification still to be delivered."""
        return sum(self._has_news(known) for group in self._groups.values() for known in group.known.values())

    def arrived(self, message: Message, now_ns: int) -> None:
        """A message was delivered."""
        key = _key(message.group_labels)
        group = self._groups.get(key)
        if group is None:
            return
        group.sent_ns = group.tried_ns = now_ns
        for sent in message.alerts:
            known = group.known.get(sent.fingerprint)
            if known is None:
                continue
            if sent.end_ns is None:
                known.told = True
            elif known.alert.start_ns == sent.start_ns:
                del group.known[sent.fingerprint]
            else:
                known.told = False
        self._forget_silent(key, group)

    def failed(self, message: Message, now_ns: int) -> None:
        """A message was not delivered: other groups go first next time."""
        group = self._groups.get(_key(message.group_labels))
        if group is not None:
            group.tried_ns = now_ns

    def saved(self) -> list[dict[str, Any]]:
        """The groups as JSON, for `restore`."""
        return [
            {
                "labels": dict(key),
                "sent_ns": group.sent_ns,
                "known": [{"told": known.told, "alert": asdict(known.alert)} for known in group.known.values()],
            }
            for key, group in self._groups.items()
        ]

    def restore(self, groups: Iterable[Mapping[str, Any]]) -> None:
        """Resume from the result of `saved`. Raises KeyError, TypeError for anything else."""
        for saved in groups:
            group = _Group(sent_ns=saved["sent_ns"])
            for known in saved["known"]:
                alert = Alert(**known["alert"])
                group.known[alert.fingerprint] = _Known(alert, known["told"])
            self._groups[_key(saved["labels"])] = group

    def _take(self, alert: Alert) -> None:
        labels = all_labels(alert)
        key = _key({name: labels[name] for name in self.receiver.group_by if name in labels})
        group = self._groups.get(key, _Group())
        known = group.known.get(alert.fingerprint)
        if known is not None:
            known.alert = alert
        elif alert.end_ns is None:
            group.known[alert.fingerprint] = _Known(alert)
            self._groups[key] = group
        if alert.end_ns is not None and not self.receiver.send_resolved:
            group.known.pop(alert.fingerprint, None)
        self._forget_silent(key, group)

    def _forget_silent(self, key: GroupKey, group: _Group) -> None:
        if not group.known:
            self._groups.pop(key, None)

    def _has_news(self, known: _Known) -> bool:
        return known.alert.end_ns is not None or not known.told

    def _is_due(self, group: _Group, now_ns: int, at_once: bool) -> bool:
        if group.sent_ns is None:
            return True
        since_s = (now_ns - group.sent_ns) / _NS_PER_S
        fires = any(known.alert.end_ns is None for known in group.known.values())
        if fires and self.receiver.repeat_s is not None and since_s >= self.receiver.repeat_s:
            return True
        has_news = any(self._has_news(known) for known in group.known.values())
        # A clock that was set back must not delay notifications.
        return has_news and (at_once or not 0 <= since_s < self.receiver.group_interval_s)

    def _message(self, key: GroupKey, now_ns: int) -> Message:
        alerts = sorted((known.alert for known in self._groups[key].known.values()), key=_firing_first)
        return Message(self.receiver.name, dict(key), tuple(alerts), now_ns)


def of_run(alert: Alert, run_id: str) -> Alert:
    """The alert with its run as a label, so that two runs with the same rules differ."""
    return alert if "run" in alert.labels else replace(alert, labels={**alert.labels, "run": run_id})


def _key(labels: Mapping[str, str]) -> GroupKey:
    return tuple(sorted(labels.items()))


def _firing_first(alert: Alert) -> tuple[bool, int, str]:
    return alert.end_ns is not None, alert.start_ns, alert.fingerprint
