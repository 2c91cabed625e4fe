"""Durations and windows in the syntax of rules: `30s`, `1h30m`, `20 steps`. A number without a unit is an error."""

import re
from typing import Final

from rlscope.alerts.types import WHOLE_RUN, RuleWindow

UNITS_NS: Final = {
    "ms": 1_000_000,
    "s": 1_000_000_000,
    "m": 60_000_000_000,
    "h": 3_600_000_000_000,
    "d": 86_400_000_000_000,
}
"""Units of Prometheus' durations that suit the length of a run and the resolution of its clock."""
_PARTS: Final = re.compile("".join(rf"(?:(\d{{1,18}}){unit})?" for unit in reversed(UNITS_NS)))
_STEPS: Final = re.compile(r"(\d{1,9}) steps?")
_LONGEST_NS: Final = 366 * UNITS_NS["d"]


def parse_duration(written: object) -> int:
    """Return the nanoseconds of `30s`, `1h30m` or `500ms`: whole numbers, largest unit first, as in Prometheus.

    Raises ValueError, with the expected form, for anything else and for more than a year.
    """
    parts = _PARTS.fullmatch(written) if written and isinstance(written, str) else None
    if parts is None:
        raise ValueError(f"a whole number with a unit of {', '.join(UNITS_NS)}, such as 30s or 1h30m")
    numbers = zip(parts.groups("0"), reversed(UNITS_NS.values()), strict=True)
    length_ns = sum(int(number) * unit_ns for number, unit_ns in numbers)
    if length_ns > _LONGEST_NS:
        raise ValueError("at most 366d")
    return length_ns


def parse_window(written: object) -> RuleWindow:
    """Return a window of a duration above zero or a number of steps. Raises ValueError with the expected form."""
    steps = _STEPS.fullmatch(written) if isinstance(written, str) else None
    if steps is not None and int(steps[1]) > 0:
        return RuleWindow(None, int(steps[1]))
    try:
        length_ns = parse_duration(written)
    except ValueError as error:
        raise ValueError(f"{error}, or a number of steps such as `20 steps`") from None
    if length_ns == 0:
        raise ValueError("a duration above 0s")
    return RuleWindow(length_ns)


def write_duration(length_ns: int) -> str:
    """Return a duration in the syntax of `parse_duration`, to the millisecond: 1m30s for 90 s."""
    left_ns, parts = length_ns, list[str]()
    for unit in reversed(UNITS_NS):
        number, left_ns = divmod(left_ns, UNITS_NS[unit])
        if number:
            parts.append(f"{number}{unit}")
    return "".join(parts) or "0s"


def write_window(window: RuleWindow) -> str:
    """Return a window in the syntax of `parse_window`, or "the whole run"."""
    if window == WHOLE_RUN:
        return "the whole run"
    if window.length_ns is not None:
        return write_duration(window.length_ns)
    return f"{window.steps} {'step' if window.steps == 1 else 'steps'}"
