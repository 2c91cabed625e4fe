"""Waits for what another thread or process does."""

import time
from collections.abc import Callable
from typing import TypeVar

_Found = TypeVar("_Found")
TIME_LIMIT_S = 60


def until(look: Callable[[], _Found]) -> _Found:
    """What a look finds once it finds something. Fails after a minute."""
    ends_s = time.monotonic() + TIME_LIMIT_S
    while not (found := look()):
        assert time.monotonic() < ends_s, "it never came about"
        time.sleep(0.02)
    return found
