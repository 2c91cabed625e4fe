"""A section of a TOML file as a dataclass: its keys, types and ranges checked, and every complaint with its line.

What a key may be is its annotation: a type, and a `Range` where it has one. Not covered: what keys mean together, which
`plan_ahead.py` checks, and TOML itself, which tomllib reads.
"""

import difflib
import math
import re
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from types import UnionType
from typing import Final, Literal, TypeVar, get_args, get_origin, get_type_hints

from rlscope.errors import RlscopeError

Section = TypeVar("Section")

_EXAMPLE: Final = "`rlscope plan --example` prints a plan with every key."
_GUESS_KEYS: Final = frozenset({"median", "log_sd"})


@dataclass(frozen=True, slots=True)
class Guess:
    """A number that is not known exactly: its median, and the standard deviation of its logarithm."""

    median: float
    log_sd: float | None = None
    """None: as the model usually takes it."""


@dataclass(frozen=True, slots=True)
class Range:
    """Ends of what a number may be; least and most are allowed themselves, above is not."""

    least: float | None = None
    most: float | None = None
    above: float | None = None

    def holds(self, value: float) -> bool:
        """Whether the value is inside."""
        low = (self.least is None or value >= self.least) and (self.above is None or value > self.above)
        return low and (self.most is None or value <= self.most)

    def __str__(self) -> str:
        ends = {"at least": self.least, "above": self.above, "at most": self.most}
        return " and ".join(f"{word} {end:,.10g}" for word, end in ends.items() if end is not None)


@dataclass(frozen=True, slots=True)
class _Kind:
    """What a key may be."""

    type: object
    choices: tuple[str, ...]
    range: Range | None

    @classmethod
    def of(cls, hint: object) -> "_Kind":
        """From an annotation: a type or None, or a Literal, with or without a range."""
        metadata = getattr(hint, "__metadata__", ())
        bare = get_args(hint)[0] if metadata else hint
        if get_origin(bare) is Literal:
            return cls(str, get_args(bare), None)
        kinds = [kind for kind in get_args(bare) if kind is not type(None)] if get_origin(bare) is UnionType else [bare]
        return cls(kinds[0], (), next((each for each in metadata if isinstance(each, Range)), None))

    def __str__(self) -> str:
        if self.choices:
            return "one of " + ", ".join(map(repr, self.choices))
        return " ".join([_WORDS.get(self.type, "a table of numbers"), *([str(self.range)] if self.range else [])])


@dataclass(frozen=True, slots=True)
class PlanText:
    """A plan as it was written, to say where something stands in it."""

    path: Path
    text: str

    def error(
        self, section: str, name: str | None, *, found: str, expected: str, next_step: str = _EXAMPLE
    ) -> RlscopeError:
        """An error that names file, line and key."""
        line = self._line_of(section, name)
        where = f"{self.path}" if line is None else f"{self.path}, line {line}"
        thing = f"[{section}]" if name is None else f"[{section}] {name}"
        return RlscopeError.of(f"{where}, {thing}", found=found, expected=expected, next_step=next_step)

    def _line_of(self, section: str, name: str | None) -> int | None:
        """The line of a key, or of its section where it is not written; None where neither is."""
        header, at_section, current = re.compile(r"\s*\[\s*([^\[\]]+?)\s*\]"), None, ""
        for number, line in enumerate(self.text.splitlines(), start=1):
            if (found := header.match(line)) is not None:
                current = found.group(1).strip("\"'")
                at_section = number if current == section and at_section is None else at_section
            elif name is not None and _names(line, name if current == section else f"{section}.{name}", current):
                return number
            elif current == "" and re.match(rf"\s*{re.escape(section)}\s*=", line):
                at_section = number
        return at_section


def read_section(kind: type[Section], given: Mapping[str, object], text: PlanText, section: str) -> Section:
    """The section as its dataclass. Raises RlscopeError for a key that is unknown, missing, or not what it may be."""
    known = {each.name: each for each in fields(kind)}  # type: ignore[arg-type]  # every section is a dataclass
    for name in given:
        if name not in known:
            raise text.error(section, name, found=f"the key {name!r}", expected=_near(name, tuple(known)))
    hints = get_type_hints(kind, include_extras=True)
    values: dict[str, object] = {}
    for name, each in known.items():
        may_be = _Kind.of(hints[name])
        if name in given:
            values[name] = _value(may_be, given[name], text, section, name)
        elif each.default is MISSING:
            raise text.error(section, name, found="no such key", expected=str(may_be))
    return kind(**values)


def near_misses(name: str, known: tuple[str, ...]) -> str | None:
    """What was probably meant, as a question; None where nothing is near."""
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    return f"did you mean {near[0]!r}?" if near else None


def _near(name: str, known: tuple[str, ...]) -> str:
    meant = near_misses(name, known)
    listed = "one of " + ", ".join(known)
    return listed if meant is None else f"{listed} ({meant})"


def _names(line: str, name: str, current: str) -> bool:
    """Whether a line assigns to the key, by itself or inside its section written as one line."""
    section, _, last = name.rpartition(".")
    bare = rf"\s*[\"']?{re.escape(name)}[\"']?\s*="
    inline = rf"\s*{re.escape(section)}\s*=\s*\{{.*\b{re.escape(last)}\s*="
    return bool(re.match(bare, line) or (section and current == "" and re.match(inline, line)))


def _value(kind: _Kind, value: object, text: PlanText, section: str, name: str) -> object:
    try:
        read = _read(kind, value)
        if kind.range is not None and not all(map(kind.range.holds, _numbers(read))):
            raise ValueError
    except ValueError:
        shown = repr(value)
        found = shown if len(shown) < 60 else f"{type(value).__name__} of {len(shown)} characters"
        raise text.error(section, name, found=found, expected=str(kind)) from None
    return read


def _read(kind: _Kind, value: object) -> object:
    """The value as a key of this kind holds it; ValueError where it is of another."""
    if kind.type is Guess:
        return _guess(value)
    if kind.type is float:
        return _number(value)
    if kind.type is int:
        number = _number(value)
        if number.is_integer():
            return int(number)
    elif kind.type is bool or kind.type is str:
        if isinstance(value, kind.type) and (not kind.choices or value in kind.choices):
            return value
    elif isinstance(value, dict):
        return {str(name): _number(each) for name, each in value.items()}
    raise ValueError


def _numbers(read: object) -> tuple[float, ...]:
    if isinstance(read, Guess):
        return (read.median,)
    if isinstance(read, dict):
        return tuple(read.values())
    return (read,) if isinstance(read, int | float) else ()


def _guess(value: object) -> Guess:
    if not isinstance(value, dict):
        return Guess(_number(value))
    if not value or not set(value) <= _GUESS_KEYS or "median" not in value:
        raise ValueError
    log_sd = value.get("log_sd")
    spread = None if log_sd is None else _number(log_sd)
    if spread is not None and not 0.0 <= spread <= 3.0:
        raise ValueError
    return Guess(_number(value["median"]), spread)


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError
    return float(value)


_WORDS: Final[Mapping[object, str]] = {
    int: "a whole number",
    float: "a number",
    str: "a text",
    bool: "true or false",
    Guess: "a number, or { median = NUMBER, log_sd = 0 to 3 }, the number",
}
