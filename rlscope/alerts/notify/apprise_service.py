"""Any service that apprise knows, by its URL: mail, Telegram, Matrix, Teams, ... Needs the extra rlscope[apprise]."""

import importlib.util
import logging

from rlscope.alerts.notify import plain_text
from rlscope.alerts.notify.message import DeliveryError, Message
from rlscope.alerts.notify.revealed import address_of
from rlscope.alerts.receiver import Receiver


def is_installed() -> bool:
    """Whether apprise can be imported."""
    return importlib.util.find_spec("apprise") is not None


def send(receiver: Receiver, message: Message) -> None:
    """Send one message. Raises DeliveryError, SecretError."""
    try:
        import apprise
    except ImportError:
        raise DeliveryError("apprise is not installed: pip install 'rlscope[apprise]'") from None
    # Its log may quote the URL, and the URL is the secret.
    logging.getLogger("apprise").setLevel(logging.CRITICAL + 1)
    service = apprise.Apprise()
    if not service.add(address_of(receiver)):
        raise DeliveryError("apprise does not know its URL")
    kind = apprise.NotifyType.FAILURE if message.status == "firing" else apprise.NotifyType.SUCCESS
    body = "\n".join(plain_text.lines(message, receiver.max_alerts))
    try:
        delivered = service.notify(body=body, title=plain_text.title(message), notify_type=kind)
    except Exception as error:  # A plug-in may raise anything, with anything in its text.
        raise DeliveryError(f"apprise failed ({type(error).__name__})") from None
    if not delivered:
        raise DeliveryError("apprise could not deliver it")
