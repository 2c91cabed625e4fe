"""How long to leave a receiver alone after it failed. The draw is given, so that a test can decide it."""

from typing import Final

FIRST_S: Final = 1.0
"""A restart of a proxy takes about as long."""
LONGEST_S: Final = 300.0
"""A receiver that comes back hears of a failing run within five minutes."""


def pause_s(failures: int, draw: float, asked_s: float | None = None) -> float:
    """Seconds to wait after so many failures in a row (1 or more): doubling, times 0.5 to 1 by a draw of 0..1.

    The draw keeps watches that failed together from coming back together. asked_s is what the receiver asked for.
    """
    longest_s = min(LONGEST_S, FIRST_S * 2.0 ** min(failures - 1, 30))
    return max(longest_s * (0.5 + 0.5 * draw), asked_s or 0.0)
