"""A running Alertmanager, which groups, silences and routes by its own configuration."""

from typing import Final

from rlscope.alerts.notify.alertmanager_json import posted_alerts
from rlscope.alerts.notify.http_post import post_json
from rlscope.alerts.notify.message import Message
from rlscope.alerts.notify.revealed import address_of, token_of
from rlscope.alerts.receiver import ALERTMANAGER_REPEAT_S, Receiver

_PATH: Final = "/api/v2/alerts"
# Prometheus gives its alerts four of its own rounds to live: three posts in a row may be lost.
_LEASE_ROUNDS: Final = 4


def send(receiver: Receiver, message: Message) -> None:
    """Post the alerts of a message. Raises DeliveryError, SecretError."""
    address = address_of(receiver).rstrip("/")
    target = address if address.endswith(_PATH) else address + _PATH
    body = posted_alerts(message, _LEASE_ROUNDS * (receiver.repeat_s or ALERTMANAGER_REPEAT_S))
    post_json(target, body, timeout_s=receiver.timeout_s, token=token_of(receiver))
