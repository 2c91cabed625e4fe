"""The address and the token of a receiver, at the moment in which they are used."""

from rlscope.alerts.notify.message import DeliveryError
from rlscope.alerts.receiver import Receiver


def address_of(receiver: Receiver) -> str:
    """Where to send to. Raises SecretError, DeliveryError."""
    if receiver.address is None:
        raise DeliveryError("it has no address")
    return receiver.address.reveal()


def token_of(receiver: Receiver) -> str | None:
    """The bearer token; None when it has none. Raises SecretError."""
    return None if receiver.token is None else receiver.token.reveal()
