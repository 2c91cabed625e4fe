"""A rule file as read, TOML or YAML, with the line of each of its entries. Knows nothing of what the entries mean."""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, cast

from rlscope.errors import RuleError

Place = tuple[str | int, ...]
"""Where an entry stands: the keys and list positions that lead to it."""
_HEADER: Final = re.compile(r"\s*(\[\[?)\s*([^\[\]]+?)\s*\]\]?\s*(?:#.*)?$")
_KEY: Final = re.compile(r"\s*([A-Za-z0-9_-]+|\"[^\"]*\"|'[^']*')\s*(?:\.\s*[A-Za-z0-9_\"'-]+\s*)*=")
_YAML: Final = (".yaml", ".yml")


@dataclass(frozen=True, slots=True)
class RuleSource:
    """The document and where each entry stands."""

    name: str
    """What errors call it: the file's path."""
    document: Mapping[str, object]
    lines: Mapping[Place, int]

    def at(self, place: Place) -> str:
        """`file:line` of an entry, or of the nearest one around it."""
        for length in range(len(place), 0, -1):
            if (line := self.lines.get(place[:length])) is not None:
                return f"{self.name}:{line}"
        return self.name


def read_source(path: Path) -> RuleSource:
    """Read a file; one that ends in .yaml or .yml is YAML, any other TOML. Raises RuleError."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RuleError.of(
            path,
            found=f"what cannot be read as text ({error})",
            expected="a file of rules as UTF-8 text",
            next_step="`rlscope rules --example` prints one.",
        ) from error
    return parse_source(text, str(path), is_yaml=path.suffix in _YAML)


def parse_source(text: str, name: str, *, is_yaml: bool) -> RuleSource:
    """The same for text that was read. Raises RuleError for text that is neither, or no table at its top."""
    return _parse_yaml(text, name) if is_yaml else _parse_toml(text, name)


def _parse_toml(text: str, name: str) -> RuleSource:
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        line = re.search(r"at line (\d+)", str(error))
        number = int(line[1]) if line else max(1, len(text.splitlines()))  # else it says: at the end of the document
        raise _unreadable(name, number, "TOML", str(error)) from error
    return RuleSource(name, document, _toml_lines(text))


def _toml_lines(text: str) -> dict[Place, int]:
    """The line of each header and key. tomllib keeps none; the text is known to be TOML here."""
    lines: dict[Place, int] = {}
    counts: dict[str, int] = {}
    around: Place = ()
    closing: str | None = None
    for number, line in enumerate(text.splitlines(), start=1):
        if closing is not None:
            closing = None if closing in line else closing
            continue
        if header := _HEADER.match(line):
            around = _header_place(header[1], [key.strip(" \"'") for key in header[2].split(".")], counts)
            lines[around] = number
        elif key := _KEY.match(line):
            lines.setdefault((*around, key[1].strip("\"'")), number)
            closing = next((quote for quote in ('"""', "'''") if line.count(quote) % 2), None)
    return lines


def _header_place(brackets: str, keys: list[str], counts: dict[str, int]) -> Place:
    """`[[rules]]` begins the next of a list; `[rules.labels]` stands in the last one of it."""
    if brackets == "[[":
        name = ".".join(keys)
        counts[name] = counts.get(name, -1) + 1
    place: list[str | int] = []
    for index, key in enumerate(keys):
        place.append(key)
        name = ".".join(keys[: index + 1])
        if name in counts:
            place.append(counts[name])
    return tuple(place)


def _parse_yaml(text: str, name: str) -> RuleSource:
    import yaml

    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        document = yaml.safe_load(text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        raise _unreadable(name, mark.line + 1 if mark else None, "YAML", error.problem or str(error)) from error
    except yaml.YAMLError as error:
        raise _unreadable(name, None, "YAML", str(error)) from error
    if document is None:
        document = {}
    if not isinstance(document, dict):
        raise _unreadable(name, 1, "YAML", f"a {type(document).__name__} at its top, not a mapping")
    lines: dict[Place, int] = {}
    if root is not None:
        _add_yaml_lines(root, (), lines)
    return RuleSource(name, cast("Mapping[str, object]", document), lines)


def _add_yaml_lines(node: object, place: Place, lines: dict[Place, int]) -> None:
    import yaml

    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            inside = (*place, str(key.value))
            lines[inside] = key.start_mark.line + 1
            _add_yaml_lines(value, inside, lines)
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            lines[(*place, index)] = value.start_mark.line + 1
            _add_yaml_lines(value, (*place, index), lines)


def _unreadable(name: str, line: int | None, kind: str, why: str) -> RuleError:
    return RuleError.of(
        f"{name}:{line}" if line else name,
        found=f"text that is not {kind} ({why})",
        expected=f"a file of rules in {kind}",
        next_step="`rlscope rules --example` prints one.",
    )
