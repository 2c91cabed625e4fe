"""Errors inside the hooks: each is counted, and the first of each kind is logged. Nothing here raises into the run.

`logging`, not `warnings`: a host that turns warnings into errors must not be stopped by its hooks.
"""

import logging
from collections.abc import Callable
from functools import partial
from typing import TypeVar

_T = TypeVar("_T")
_logger = logging.getLogger("rlscope_otel")


class Faults:
    """Counts faults by kind and logs the first of each kind as a warning."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}

    def note(self, kind: str, what: object) -> None:
        """Count a fault, and log it if it is the first of its kind."""
        seen = self.counts.get(kind, 0)
        self.counts[kind] = seen + 1
        if not seen:
            _logger.warning("rlscope: %s: %s (the run continues; repeats are only counted)", kind, what)

    def knows(self, kind: str, what: str, value: object, known: tuple[str, ...], instead: str) -> bool:
        """Return whether a value of the host is one of these texts; any other is counted. instead: its record in words.

        Values of other types are not compared, so they cannot raise.
        """
        if isinstance(value, str) and value in known:
            return True
        shown = repr(value[:100]) if isinstance(value, str) else f"of type {type(value).__name__}"
        self.note(kind, f"unknown {what} {shown}, {instead}; known: {', '.join(known)}")
        return False

    def attempt(self, kind: str, action: Callable[..., _T], *arguments: object) -> _T | None:
        """Return what an action of ours returns; None if it raises, which is counted and does not reach the host."""
        try:
            return action(*arguments)
        except Exception as error:  # What the host gives us may fail in any way.
            self.note(kind, or_none(partial(repr, error)) or type(error).__name__)
            return None


def or_none(read: Callable[[], _T]) -> _T | None:
    """Return a value of the host or of a device; None if this one does not have it, or fails."""
    try:
        return read()
    except Exception:  # What another version has may fail in any way.
        return None
