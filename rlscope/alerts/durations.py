"""Durations and windows as a rule writes them: `30s`, `1h30m`, `20 steps`. A number without a unit is refused."""

import re
from typing import Any, Final

from rlscope.alerts.types import WHOLE_RUN, RuleWindow

UNITS_NS: Final = {
    "ms": 1_000_000,
    "s": 1_000_000_000,
    "m": 60_000_000_000,
    "h": 3_600_000_000_000,
    "d": 86_400_000_000_000,
}
"""The units of Prometheus' durations that a run can be long enough, and its clock fine enough, for."""
_PART: Final = re.compile(r"(\d{1,18})(ms|s|m|h|d)")
_STEPS: Final = re.compile(r"(\d{1,9}) steps?")
_LONGEST_NS: Final = 366 * UNITS_NS["d"]

DURATION_SCHEMA: Final[dict[str, Any]] = {
    "type": "string",
    "pattern": r"^(\d{1,18}d)?(\d{1,18}h)?(\d{1,18}m)?(\d{1,18}s)?(\d{1,18}ms)?$",
    "minLength": 2,
    "examples": ["30s", "1h30m"],
}
"""What `parse_duration` reads, as JSON Schema."""
WINDOW_SCHEMA: Final[dict[str, Any]] = {
    "anyOf": [DURATION_SCHEMA, {"type": "string", "pattern": r"^\d{1,9} steps?$", "examples": ["20 steps"]}]
}
"""What `parse_window` reads, as JSON Schema."""


def parse_duration(text: str) -> int:
    """Nanoseconds of `30s`, `1h30m`, `500ms`; whole numbers, largest unit first, as in Prometheus.

    Raises ValueError, with what was expected, for anything else or more than a year.
    """
    parts = _PART.findall(text)
    names = [unit for _, unit in parts]
    ordered = names == sorted(set(names), key=list(UNITS_NS).index, reverse=True)
    if not parts or "".join(number + unit for number, unit in parts) != text or not ordered:
        raise ValueError(f"a whole number with a unit of {', '.join(UNITS_NS)}, such as 30s or 1h30m")
    length_ns = sum(int(number) * UNITS_NS[unit] for number, unit in parts)
    if length_ns > _LONGEST_NS:
        raise ValueError("at most 366d")
    return length_ns


def parse_window(text: str) -> RuleWindow:
    """A duration above nothing, or a number of steps. Raises ValueError with what was expected."""
    steps = _STEPS.fullmatch(text)
    if steps is not None and int(steps[1]) > 0:
        return RuleWindow(None, int(steps[1]))
    try:
        length_ns = parse_duration(text)
    except ValueError as error:
        raise ValueError(f"{error}, or a number of steps such as `20 steps`") from None
    if length_ns == 0:
        raise ValueError("a duration above 0s")
    return RuleWindow(length_ns)


def write_duration(length_ns: int) -> str:
    """The text that `parse_duration` reads, to the millisecond: 90 s are 1m30s."""
    left_ns, parts = length_ns, list[str]()
    for unit in reversed(UNITS_NS):
        number, left_ns = divmod(left_ns, UNITS_NS[unit])
        if number:
            parts.append(f"{number}{unit}")
    return "".join(parts) or "0s"


def write_window(window: RuleWindow) -> str:
    """The text that `parse_window` reads, or that the whole run is meant."""
    if window == WHOLE_RUN:
        return "the whole run"
    if window.length_ns is not None:
        return write_duration(window.length_ns)
    return f"{window.steps} {'step' if window.steps == 1 else 'steps'}"
