"""Delivers messages, with one thread per receiver, so that a slow or failing receiver blocks nothing else.

Only the caller's thread changes state: a courier thread notes the outcome of its delivery, and `collect` reads it. A
receiver that fails is retried with growing pauses. Time and thread start are passed in.
"""

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

from rlscope.alerts.notify.message import DeliveryError, Message
from rlscope.alerts.notify.outbox import NOTHING_SENT, Outbox, OutboxState
from rlscope.alerts.notify.senders import SENDERS
from rlscope.alerts.receiver import Receiver
from rlscope.analysis.result import Alert
from rlscope.errors import SecretError

FIRST_S: Final = 1.0
"""About as long as a proxy takes to restart."""
LONGEST_S: Final = 300.0
"""A receiver that recovers is notified within five minutes."""


def pause_s(failures: int) -> float:
    """Seconds to wait after a number of failures in a row (1 or more): they double."""
    return min(LONGEST_S, FIRST_S * 2.0 ** min(failures - 1, 30))


Start = Callable[[Callable[[], None]], None]

_NS_PER_S: Final = 1_000_000_000


@dataclass(slots=True)
class _Desk:
    """One receiver: its outbox and its delivery status."""

    outbox: Outbox
    out: Message | None = None
    """The message on its way."""
    is_over: bool = False
    """Whether its delivery is over; the courier's thread sets this and `error`."""
    error: str | None = None
    """Why it was not delivered; known once it is over."""
    failures: int = 0
    """In a row."""
    next_ns: int = 0
    trouble: str | None = None

    def carry(self, message: Message) -> None:
        """Send a message, on the courier's thread."""
        receiver, self.error = self.outbox.receiver, None
        try:
            SENDERS[receiver.kind](receiver, message)
        except (DeliveryError, SecretError) as error:
            self.error = str(error)
        except Exception as error:  # A bug in a sender must not end the watch; its text could quote a secret.
            self.error = f"sending failed ({type(error).__name__})"
        self.is_over = True

    def collect(self, now_ns: int) -> bool:
        """Record the outcome of the message on its way. False if there is none yet."""
        if self.out is None or not self.is_over:
            return False
        if self.error is None:
            self.failures, self.trouble = 0, None
            self.outbox.arrived(self.out, now_ns)
        else:
            self.failures += 1
            self.next_ns = now_ns + round(pause_s(self.failures) * _NS_PER_S)
            self.trouble = f"receiver {self.outbox.receiver.name}: {self.error}; retrying"
        self.out = None
        return True


def start_thread(work: Callable[[], None]) -> None:
    """Run the work on a thread that does not keep the process alive."""
    threading.Thread(target=work, name="rlscope-notify", daemon=True).start()


class Couriers:
    """All receivers of a watch."""

    def __init__(
        self,
        receivers: Iterable[Receiver],
        state: Mapping[str, OutboxState] | None = None,
        *,
        start: Start = start_thread,
    ) -> None:
        """Begin, or resume from the result of `saved`; receivers that are gone are dropped."""
        known = state or {}
        self._desks = {each.name: _Desk(Outbox(each, known.get(each.name, NOTHING_SENT))) for each in receivers}
        self._start = start

    @property
    def waiting(self) -> int:
        """Alerts with a notification still to be delivered."""
        return sum(desk.outbox.waiting for desk in self._desks.values())

    def can_deliver_before(self, due_ns: int) -> bool:
        """Whether a receiver can still be notified by then: in flight, or retried in time."""
        late = (desk for desk in self._desks.values() if desk.outbox.waiting)
        return any(desk.out is not None or desk.next_ns < due_ns for desk in late)

    @property
    def troubles(self) -> tuple[str, ...]:
        """One sentence for each failing receiver."""
        return tuple(desk.trouble for desk in self._desks.values() if desk.trouble is not None)

    def take(self, alerts: Iterable[Alert], now_ns: int) -> None:
        """Accept the alerts of one poll: all that are firing, and those just resolved."""
        alerts = tuple(alerts)
        for desk in self._desks.values():
            desk.outbox.take(alerts, now_ns)

    def dispatch(self, now_ns: int, *, at_once: bool = False) -> None:
        """Start a delivery to each receiver with a due message whose retry pause is over.

        at_once: do not wait for more alerts to put into the same message.
        """
        for desk in self._desks.values():
            if desk.out is None and now_ns >= desk.next_ns:
                desk.out, desk.is_over = desk.outbox.due(now_ns, at_once=at_once), False
                if desk.out is not None:
                    self._start(partial(desk.carry, desk.out))

    def collect(self, now_ns: int) -> bool:
        """Record the outcome of messages. True if there was any."""
        return any([desk.collect(now_ns) for desk in self._desks.values()])

    def saved(self) -> Mapping[str, OutboxState]:
        """Return the messages sent to each receiver, without secrets."""
        return {name: desk.outbox.saved() for name, desk in self._desks.items()}
