"""A Slack incoming webhook: https://docs.slack.dev/messaging/sending-messages-using-incoming-webhooks."""

from typing import Final

from rlscope.alerts.notify import plain_text
from rlscope.alerts.notify.http_post import post_json
from rlscope.alerts.notify.message import Message
from rlscope.alerts.notify.revealed import address_of
from rlscope.alerts.receiver import Receiver

# Nobody reads further in a chat.
_MOST_LINES: Final = 20
_ESCAPES: Final = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})


def send(receiver: Receiver, message: Message) -> None:
    """Post one message. Raises DeliveryError, SecretError."""
    body = {"text": text_of(message, min(receiver.max_alerts, _MOST_LINES))}
    post_json(address_of(receiver), body, timeout_s=receiver.timeout_s)


def text_of(message: Message, max_alerts: int) -> str:
    """The text in Slack's own mark-up: what a run supplied can neither mention anybody nor hide a link."""
    escaped = [line.translate(_ESCAPES) for line in plain_text.lines(message, max_alerts)]
    return "\n".join([f"*{plain_text.title(message).translate(_ESCAPES)}*", *(f"• {line}" for line in escaped)])
