"""Numbers in logs: the one place that parses and bounds them.

If a line has an impossible number, its reader counts the line as bad and goes on.
"""

import math
import re
from collections.abc import Iterable, Mapping
from typing import Final

from rlscope.trace.footers import LATEST_NS

FINITE: Final = r"-?\d+(?:\.\d*)?(?:[eE][-+]?\d+)?"
"""Regular expression of a printed number."""
_IN_MS: Final = re.compile(r"(?:^|[ _/.-])(?:ms|millis|milliseconds)$")
_PAIR: Final = re.compile(rf"'([^']+)':\s?'?(?:[\w.]+\()?({FINITE})\)?'?(?=\s*(?:[,}}]|$))")
MOST: Final = 10**15
"""More tokens than any run has."""
MOST_STEPS: Final = 10**9
LONGEST_S: Final = 1e7
"""Longest plausible duration, in seconds: 116 days."""
MOST_GPUS: Final = 10**6
EARLIEST_S: Final = 1e9
"""A time in the year 2001. Smaller times count from the start of a process or a machine."""
SECOND_NS: Final = 1_000_000_000
LATEST_S: Final = LATEST_NS / 1e9
"""A time in the year 2116."""
COUNTS: Final = ("tokens", "samples")
"""Columns of train_steps that hold whole numbers."""


class RefusedNumberError(ValueError):
    """A number that no run can have, or text that is not a number."""


def real(value: object) -> float:
    """Return a number from text or JSON, of any size: infinity if a float cannot hold it. Raises RefusedNumberError."""
    if not isinstance(value, int | float | str):
        raise RefusedNumberError
    try:
        return float(value)
    except OverflowError:
        return math.inf if isinstance(value, str) or value > 0 else -math.inf
    except ValueError:
        raise RefusedNumberError from None


def named_reals(text: str) -> dict[str, float]:
    """Return the numbers of a printed dictionary by name, such as `'a': np.float64(1.5), 'b': '2'`."""
    return {name: real(value) for name, value in _PAIR.findall(text)}


def number(value: object, most: float | None = None) -> float | None:
    """Return a number from text or JSON, of any size or up to `most`; None for anything else."""
    try:
        return real(value) if most is None else amount(value, most)
    except RefusedNumberError:
        return None


def amount(value: object, most: float = MOST) -> float:
    """Return a finite number of plausible size. Raises RefusedNumberError."""
    found = real(value)
    if not abs(found) <= most:
        raise RefusedNumberError
    return found


def whole(value: object, most: int = MOST) -> int:
    """Return a number of plausible size, without its fraction. Raises RefusedNumberError."""
    return int(amount(value, most))


def to_ns(seconds: float) -> int:
    """Convert seconds to whole nanoseconds."""
    return round(seconds * SECOND_NS)


def epoch_ns(seconds: object) -> int | None:
    """Convert seconds since the epoch to nanoseconds; None for anything else, such as seconds since a start."""
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not EARLIEST_S <= seconds < LATEST_S:
        return None
    return round(seconds * 1e9)


def factors_in(products: Iterable[str]) -> frozenset[str]:
    """Return the names in products such as `a * b`."""
    return frozenset(name for each in products for name in each.split(" * "))


def columns_of(values: Mapping[str, float], columns: Mapping[str, Iterable[str]]) -> dict[str, float]:
    """Return the columns of train_steps that these values fill. Each takes its first product with all factors known."""
    found: dict[str, float] = {}
    for column, products in columns.items():
        known = (
            [values[name] for name in each.split(" * ")] for each in products if factors_in([each]) <= values.keys()
        )
        value = math.prod(next(known, [math.nan]))
        if math.isfinite(value):
            found[column] = round(value) if column in COUNTS else value
    return found


def seconds(value: object) -> float:
    """Return a duration in seconds. Raises RefusedNumberError."""
    return amount(value, LONGEST_S)


def is_in_ms(name: str) -> bool:
    """Return whether a time is in milliseconds by its name; others are in seconds."""
    return _IN_MS.search(name) is not None
