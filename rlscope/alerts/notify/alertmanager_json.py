"""Alertmanager's two shapes of JSON: what it posts to a webhook (version 4), and what it takes at /api/v2/alerts.

The first is documented at https://prometheus.io/docs/alerting/latest/configuration/#webhook_config, the second in
Alertmanager's own api/v2/openapi.yaml. Times are RFC 3339 in UTC.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

from rlscope.alerts.alert import Alert
from rlscope.alerts.notify.message import Message, all_labels

VERSION: Final = "4"
_NEVER: Final = "0001-01-01T00:00:00Z"
_NS_PER_S: Final = 1_000_000_000

Json = dict[str, object]


def webhook_payload(message: Message, max_alerts: int) -> Json:
    """The version 4 payload; alerts beyond max_alerts are counted in truncatedAlerts."""
    shown = message.alerts[:max_alerts]
    return {
        "version": VERSION,
        "groupKey": message.group_key,
        "truncatedAlerts": len(message.alerts) - len(shown),
        "status": message.status,
        "receiver": message.receiver,
        "groupLabels": dict(message.group_labels),
        "commonLabels": _common([all_labels(alert) for alert in message.alerts]),
        "commonAnnotations": _common([dict(alert.annotations) for alert in message.alerts]),
        "externalURL": "",
        "alerts": [_alert(alert) for alert in shown],
    }


def posted_alerts(message: Message, lease_s: float) -> list[Json]:
    """The body of POST /api/v2/alerts: what fires ends lease_s from now unless it is posted again before that."""
    lease_end_ns = message.now_ns + round(lease_s * _NS_PER_S)
    return [
        {
            "labels": all_labels(alert),
            "annotations": dict(alert.annotations),
            "startsAt": rfc3339(alert.start_ns),
            "endsAt": rfc3339(lease_end_ns if alert.end_ns is None else alert.end_ns),
        }
        for alert in message.alerts
    ]


def rfc3339(utc_ns: int) -> str:
    """A moment in UTC to the nanosecond, as 2026-01-31T12:00:00.000000001Z."""
    whole_s, rest_ns = divmod(utc_ns, _NS_PER_S)
    return f"{datetime.fromtimestamp(whole_s, UTC):%Y-%m-%dT%H:%M:%S}.{rest_ns:09d}Z"


def _alert(alert: Alert) -> Json:
    return {
        "status": "firing" if alert.end_ns is None else "resolved",
        "labels": all_labels(alert),
        "annotations": dict(alert.annotations),
        "startsAt": rfc3339(alert.start_ns),
        "endsAt": _NEVER if alert.end_ns is None else rfc3339(alert.end_ns),
        "generatorURL": "",
        "fingerprint": alert.fingerprint,
    }


def _common(each: Sequence[dict[str, str]]) -> dict[str, str]:
    """The pairs that all of them hold."""
    return {name: value for name, value in each[0].items() if all(other.get(name) == value for other in each)}
