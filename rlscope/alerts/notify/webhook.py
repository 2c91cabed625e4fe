"""A webhook that takes what Alertmanager posts (version 4 of its payload)."""

from rlscope.alerts.notify.alertmanager_json import webhook_payload
from rlscope.alerts.notify.http_post import post_json
from rlscope.alerts.notify.message import Message
from rlscope.alerts.notify.revealed import address_of, token_of
from rlscope.alerts.receiver import Receiver


def send(receiver: Receiver, message: Message) -> None:
    """Post one message. Raises DeliveryError, SecretError."""
    body = webhook_payload(message, receiver.max_alerts)
    post_json(address_of(receiver), body, timeout_s=receiver.timeout_s, token=token_of(receiver))
