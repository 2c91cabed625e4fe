import threading

import pytest

from rlscope.alerts.notify import couriers as couriers_module
from rlscope.alerts.notify.couriers import Couriers, pause_s
from tests.alerts.notify.given import alert, at, at_once, receiver
from tests.alerts.notify.listener import Listener
from tests.waiting import until


def look(couriers: Couriers, seconds: float) -> None:
    """One round of a watch: what fires is taken in, sent, and what became of it noted."""
    couriers.take([alert()], at(seconds))
    couriers.dispatch(at(seconds))
    couriers.collect(at(seconds))


@pytest.mark.parametrize(("failures", "seconds"), [(1, 1.0), (2, 2.0), (9, 256.0), (10, 300.0), (9999, 300.0)])
def test_pauses_double_up_to_five_minutes(failures: int, seconds: float) -> None:
    assert pause_s(failures) == seconds


def test_a_message_that_failed_is_sent_again_after_a_pause_that_grows(listener: Listener) -> None:
    listener.answers = [500, 503]
    couriers = Couriers([receiver(url=listener.url)], start=at_once)
    look(couriers, 0)
    assert couriers.troubles == ("receiver oncall: it answered HTTP 500; retrying",)
    for seconds, requests in [(0.9, 1), (1.0, 2), (2.9, 2), (3.0, 3), (100, 3)]:
        look(couriers, seconds)
        assert len(listener.requests) == requests, seconds
    assert (couriers.troubles, couriers.waiting) == ((), 0)
    assert [body["status"] for body in listener.bodies] == ["firing"] * 3


def test_a_slow_receiver_holds_up_neither_the_watch_nor_others(listener: Listener) -> None:
    listener.hold = threading.Event()
    slow = receiver(url=listener.url, name="slow", timeout_s=5.0)
    couriers = Couriers([slow])
    for seconds in (0, 5, 15):
        look(couriers, seconds)
        assert (couriers.troubles, couriers.waiting) == ((), 1)
    listener.hold.set()
    until(lambda: couriers.collect(at(20)))
    assert (couriers.troubles, couriers.waiting, len(listener.requests)) == ((), 0, 1)


def test_a_secret_that_is_missing_is_named_by_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("THE_URL", raising=False)
    couriers = Couriers([receiver("apprise", url_env="THE_URL")], start=at_once)
    look(couriers, 0)
    assert couriers.troubles[0].startswith("receiver oncall: $THE_URL: found nothing; expected the secret.")


def test_a_bug_in_a_sender_does_not_end_the_watch_and_its_text_is_not_shown(monkeypatch) -> None:
    def broken(*_: object) -> None:
        raise KeyError("hush")

    monkeypatch.setitem(couriers_module.SENDERS, "webhook", broken)
    couriers = Couriers([receiver(url="http://h")], start=at_once)
    look(couriers, 0)
    assert couriers.troubles == ("receiver oncall: sending failed (KeyError); retrying",)


def test_what_was_told_survives_a_restart_and_receivers_that_are_gone_are_forgotten(listener: Listener) -> None:
    first = Couriers([receiver(url=listener.url), receiver(url=listener.url, name="gone")], start=at_once)
    look(first, 0)
    assert len(listener.requests) == 2
    kept = [receiver(url=listener.url), receiver(url=listener.url, name="new")]
    again = Couriers(kept, first.saved(), start=at_once)
    look(again, 60)
    assert [body["receiver"] for body in listener.bodies[2:]] == ["new"]
