"""Reads the text that a Prometheus endpoint serves: series names, labels and values.

Help, types, timestamps and exemplars are passed over; a line that is no series is too.
"""

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

_SERIES: Final = re.compile(
    r'(?P<name>[A-Za-z_:][\w:]*)(?:\{(?P<labels>(?:[^"}]|"(?:[^"\\]|\\.)*")*)\})?\s+(?P<value>\S+)'
)
_LABEL: Final = re.compile(r'(?P<name>[A-Za-z_]\w*)="(?P<value>(?:[^"\\]|\\.)*)"')
_ESCAPES: Final = {r"\\": "\\", r"\"": '"', r"\n": "\n"}


class Point(NamedTuple):
    """One series and its value."""

    name: str
    labels: dict[str, str]
    value: float


def points_of(page: str) -> Iterator[Point]:
    """The series of a page, in its order."""
    for line in page.splitlines():
        found = None if line.startswith("#") else _SERIES.match(line)
        value = None if found is None else _number(found["value"])
        if found is not None and value is not None:
            labels = {label["name"]: _plain(label["value"]) for label in _LABEL.finditer(found["labels"] or "")}
            yield Point(found["name"], labels, value)


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _plain(escaped: str) -> str:
    return re.sub(r"\\.", lambda found: _ESCAPES.get(found[0], found[0]), escaped)
