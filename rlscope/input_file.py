"""A file that a person wrote, in TOML or YAML: what it holds, the line of each key, and errors that name both.

A pydantic model says what a file may hold. Its JSON Schema is published, and errors describe what was expected from the
same schema, so the two agree. Not covered: what keys mean together, which the readers of each kind of file check.
"""

import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final, TypeVar, cast

from pydantic import TypeAdapter, ValidationError
from pydantic.json_schema import GenerateJsonSchema

from rlscope.errors import RlscopeError

T = TypeVar("T")
Place = tuple[str | int, ...]
"""Where an entry stands: the keys and list positions that lead to it."""
Schema = Mapping[str, Any]
"""A JSON Schema, or a part of one."""

_HEADER: Final = re.compile(r"\s*(\[\[?)\s*([^\[\]]+?)\s*\]\]?\s*(?:#.*)?$")
_NAME: Final = r"(?:[A-Za-z0-9_-]+|\"[^\"]*\"|'[^']*')"
_NAMES: Final = re.compile(_NAME)
_KEY: Final = re.compile(rf"\s*({_NAME}(?:\s*\.\s*{_NAME})*)\s*=")
_YAML: Final = (".yaml", ".yml")
_MOST_NODES: Final = 100_000
"""Of a YAML file: a file of rules has hundreds."""
_LONGEST_FOUND: Final = 60
"""Characters of a value that an error repeats."""


@dataclass(frozen=True, slots=True)
class FileKind:
    """What errors call a kind of file, and where they send its author."""

    noun: str
    """With its article: a plan."""
    example: str
    """How to get a file to start from, as a sentence."""
    error: type[RlscopeError] = RlscopeError
    advice: Mapping[str, str] = field(default_factory=dict[str, str])
    """The next step under a top-level key; `example` under any other."""


@dataclass(frozen=True, slots=True)
class Source:
    """The document of a file, and where each of its entries stands."""

    name: str
    """What errors call it: the file's path."""
    kind: FileKind
    document: Mapping[str, object]
    lines: Mapping[Place, int]

    def at(self, place: Place) -> str:
        """`file:line` of an entry, or of the nearest one around it."""
        for length in range(len(place), 0, -1):
            if (line := self.lines.get(place[:length])) is not None:
                return f"{self.name}:{line}"
        return self.name

    def error(self, place: Place, *, found: str, expected: str, next_step: str | None = None) -> RlscopeError:
        """An error that names file, line and key; the next step is that of the file's kind unless one is given."""
        where = f"{self.at(place)}, {dotted(place)}" if place else self.name
        return self.kind.error.of(where, found=found, expected=expected, next_step=next_step or self.advice(place))

    def advice(self, place: Place) -> str:
        """The usual next step for an entry."""
        return self.kind.advice.get(str(place[0]), self.kind.example) if place else self.kind.example

    def unknown(self, place: Place, what: str, name: str, known: Sequence[str]) -> RlscopeError:
        """An error for a name that is none of the known ones, with the nearest of them."""
        found, expected = f"unknown {what} {name!r}", "one of " + ", ".join(known)
        return self._hinted(place, found, expected, did_you_mean(name, known))

    def _hinted(self, place: Place, found: str, expected: str, hint: str | None) -> RlscopeError:
        step = self.advice(place)
        return self.error(place, found=found, expected=expected, next_step=f"{hint} {step}" if hint else step)

    def validated(self, model: TypeAdapter[T]) -> T:
        """The document as its model. Raises the error of the file's kind for the first entry that does not fit."""
        try:
            return model.validate_python(self.document)
        except ValidationError as error:
            raise self._refusal(error, json_schema(model)) from None

    def _refusal(self, error: ValidationError, schema: Schema) -> RlscopeError:
        faults = [_Fault.of(each, schema, self.document) for each in error.errors(include_url=False)]
        # A misspelt key comes first: it usually explains the missing one beside it.
        fault = min(faults, key=lambda each: not each.is_unknown_key)
        return self._hinted(fault.place, fault.found, fault.expected, fault.hint)


@dataclass(frozen=True, slots=True)
class _Fault:
    """One error of pydantic's, in the terms of the file and its schema."""

    place: Place
    found: str
    expected: str
    hint: str | None = None
    is_unknown_key: bool = False

    @classmethod
    def of(cls, error: Mapping[str, Any], schema: Schema, document: object) -> "_Fault":
        """From an item of `ValidationError.errors()`."""
        kind = error["type"]
        place, parent, part = _follow(error["loc"], schema)
        if kind in ("unexpected_keyword_argument", "extra_forbidden") and place[-1:] == error["loc"][-1:]:
            return cls._unknown_key(place, parent)
        if place and isinstance(place[-1], int) and isinstance(_value(document, place[:-1]), dict):
            return cls(place[:-1], f"the key {place[-1]}", "keys that are strings")
        expected, known = describe(part, schema), part.get("enum", ())
        if kind.startswith("union_tag"):
            place, known = (*place, part["discriminator"]["propertyName"]), tuple(part["discriminator"]["mapping"])
            expected = f"one of {', '.join(map(repr, known))}"
        elif kind == "value_error":
            expected = str(error["ctx"]["error"])
        value = _value(document, place)
        hint = did_you_mean(value, known) if isinstance(value, str) else None
        return cls(place, _found(value, part), expected, hint)

    @classmethod
    def _unknown_key(cls, place: Place, parent: Schema) -> "_Fault":
        name, properties = str(place[-1]), parent["properties"]
        of = next((f" for {key} {each['const']!r}" for key, each in properties.items() if "const" in each), "")
        expected = "one of " + ", ".join(properties)
        return cls(place, f"unknown key {name!r}{of}", expected, did_you_mean(name, tuple(properties)), True)


def did_you_mean(name: str, known: Sequence[str]) -> str | None:
    """What was probably meant, as a question; None where nothing is near."""
    near = get_close_matches(name, known, n=1)
    return f"Did you mean {near[0]!r}?" if near else None


def dotted(place: Place) -> str:
    """A place as one text: rules[0].labels.severity."""
    return "".join(f"[{each}]" if isinstance(each, int) else f".{each}" for each in place).removeprefix(".")


def read_source(path: Path, kind: FileKind) -> Source:
    """Read a file; one that ends in .yaml or .yml is YAML, any other TOML. Raises the error of its kind."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise kind.error.of(
            path, found=error.strerror or str(error), expected=kind.noun, next_step=kind.example
        ) from error
    except UnicodeDecodeError as error:
        raise kind.error.of(path, found="text that is not UTF-8", expected=kind.noun, next_step=kind.example) from error
    return parse_source(text, str(path), kind, is_yaml=path.suffix in _YAML)


def parse_source(text: str, name: str, kind: FileKind, *, is_yaml: bool = False) -> Source:
    """The same for text that was read. Raises the error of its kind for text that is neither TOML nor YAML."""
    return _parse_yaml(text, name, kind) if is_yaml else _parse_toml(text, name, kind)


def _parse_toml(text: str, name: str, kind: FileKind) -> Source:
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        line = re.search(r"at line (\d+)", str(error))
        number = int(line[1]) if line else max(1, len(text.splitlines()))  # else it says: at the end of the document
        raise _unreadable(f"{name}:{number}", kind, "TOML", str(error)) from error
    except RecursionError as error:
        raise _unreadable(name, kind, "TOML", "nested too deep") from error
    return Source(name, kind, document, _toml_lines(text))


def _toml_lines(text: str) -> dict[Place, int]:
    """The line of each header and key. tomllib keeps none; the text is known to be TOML here."""
    lines: dict[Place, int] = {}
    counts: dict[Place, int] = {}
    around: Place = ()
    for number, line in _outside_of_texts(text):
        if header := _HEADER.match(line):
            around = _header_place(_keys(header[2]), counts, is_list=header[1] == "[[")
            lines.setdefault(around, number)
        elif key := _KEY.match(line):
            keys = _keys(key[1])
            for length in range(1, len(keys) + 1):
                lines.setdefault((*around, *keys[:length]), number)
    return lines


def _outside_of_texts(text: str) -> Iterator[tuple[int, str]]:
    """The numbered lines that do not begin inside a text of several lines."""
    closing: str | None = None
    for number, line in enumerate(text.splitlines(), start=1):
        if closing is None:
            yield number, line
            closing = next((quote for quote in ('"""', "'''") if line.count(quote) % 2), None)
        elif closing in line:
            closing = None


def _keys(text: str) -> list[str]:
    return [key.strip("\"'") for key in _NAMES.findall(text)]


def _header_place(keys: Sequence[str], counts: dict[Place, int], *, is_list: bool) -> Place:
    """`[[rules]]` begins the next of a list; `[rules.labels]` stands in the last one of it."""
    place: Place = ()
    for index, key in enumerate(keys):
        place = (*place, key)
        if is_list and index == len(keys) - 1:
            counts[place] = counts.get(place, -1) + 1
        if place in counts:
            place = (*place, counts[place])
    return place


def _parse_yaml(text: str, name: str, kind: FileKind) -> Source:
    import yaml

    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        if not _is_bounded(root):
            raise _unreadable(name, kind, "YAML", f"more than {_MOST_NODES:,} values with its aliases written out")
        document = yaml.safe_load(text)
    except RecursionError as error:
        raise _unreadable(name, kind, "YAML", "nested too deep") from error
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f"{name}:{mark.line + 1}" if mark else name
        raise _unreadable(where, kind, "YAML", error.problem or str(error)) from error
    except yaml.YAMLError as error:
        raise _unreadable(name, kind, "YAML", str(error)) from error
    document = {} if document is None else document
    if not isinstance(document, dict):
        raise _unreadable(f"{name}:1", kind, "YAML", f"a {type(document).__name__} at its top, not a mapping")
    return Source(name, kind, cast("Mapping[str, object]", document), dict(_yaml_lines(root, ())))


def _is_bounded(root: object) -> bool:
    """Whether a document stays small when every alias is written out; one that holds itself does not."""
    import yaml

    waiting, seen = [root], 0
    while waiting and seen <= _MOST_NODES:
        node = waiting.pop()
        seen += 1
        if isinstance(node, yaml.SequenceNode):
            waiting += node.value
        elif isinstance(node, yaml.MappingNode):
            waiting += [each for pair in node.value for each in pair]
    return seen <= _MOST_NODES


def _yaml_lines(node: object, place: Place) -> Iterator[tuple[Place, int]]:
    import yaml

    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            inside = (*place, str(key.value))
            yield inside, key.start_mark.line + 1
            yield from _yaml_lines(value, inside)
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            inside = (*place, index)
            yield inside, value.start_mark.line + 1
            yield from _yaml_lines(value, inside)


def _unreadable(where: str, kind: FileKind, syntax: str, why: str) -> RlscopeError:
    return kind.error.of(
        where, found=f"text that is not {syntax} ({why})", expected=f"{kind.noun} in {syntax}", next_step=kind.example
    )


class _UntitledSchema(GenerateJsonSchema):
    """Without the titles that repeat each key's name."""

    def field_title_should_be_set(self, schema: Any) -> bool:  # noqa: ANN401  # the type of pydantic's own signature
        return False


def json_schema(model: TypeAdapter[Any]) -> dict[str, Any]:
    """The JSON Schema of what a model reads."""
    return model.json_schema(schema_generator=_UntitledSchema)


def describe(part: Schema, schema: Schema, *, table: str = "a table") -> str:
    """What a part of a schema allows, in words: a whole number at least 1.

    table is what readers of the file call an object.
    """
    part = _resolved(part, schema)
    if "anyOf" in part:
        return ", or ".join(describe(each, schema, table=table) for each in _choices(part))
    if (words := _WORDS.get(part.get("type", ""))) is not None:
        return words(part)
    if part.get("type") == "array":
        each = describe(part.get("items", {}), schema, table=table)
        return f"a {'non-empty ' if part.get('minItems') else ''}list of {each.removeprefix('a ')}s"
    if not (properties := part.get("properties")):
        values = part.get("additionalProperties")
        return f"{table}, each value {describe(values, schema)}" if isinstance(values, dict) else table
    if len(properties) > _FEW:
        return table
    inside = ", ".join(f"{name} = {describe(each, schema)}" for name, each in properties.items())
    return f"{table} {{ {inside} }}"


def _number(noun: str) -> Callable[[Schema], str]:
    def words(part: Schema) -> str:
        ends = (("minimum", "at least"), ("exclusiveMinimum", "above"), ("maximum", "at most"))
        said = [f"{word} {part[key]:,.10g}" for key, word in ends if key in part and abs(part[key]) < _BITS]
        return " ".join([noun, *([" and ".join(said)] if said else [])])

    return words


def _string(part: Schema) -> str:
    if "enum" in part or "const" in part:
        return "one of " + ", ".join(map(repr, part.get("enum", [part.get("const")])))
    examples = " or ".join(map(repr, part.get("examples", ())))
    noun = "a non-empty string" if part.get("minLength") else "a string"
    return f"{noun} such as {examples}" if examples else noun


_FEW: Final = 3
"""The keys of a table that an error still lists."""
_BITS: Final = 2**62
"""Bounds beyond it only say how wide the number's column is."""
_WORDS: Final[Mapping[str, Callable[[Schema], str]]] = {
    "integer": _number("a whole number"),
    "number": _number("a number"),
    "boolean": lambda _: "true or false",
    "string": _string,
}


_MISSING: Final = object()


def _value(document: object, place: Place) -> object:
    """What stands at a place; `_MISSING` where nothing does."""
    value: Any = document
    for key in place:
        if isinstance(value, dict) and key not in value:
            return _MISSING
        value = value[key]
    return value


def _found(value: object, part: Schema) -> str:
    if value is _MISSING:
        return "no such key"
    if part.get("writeOnly"):
        return "a value that is not shown, because it may be secret"
    shown = repr(value)
    return shown if len(shown) < _LONGEST_FOUND else f"{type(value).__name__} of {len(shown)} characters"


def _follow(loc: Sequence[str | int], schema: Schema) -> tuple[Place, Schema, Schema]:
    """The place that pydantic names, the schema around it, and its own schema.

    It ends where several kinds of value are allowed: what is wrong with each of them is not what a reader needs.
    """
    place: Place = ()
    parent, part = schema, _one(schema, schema)
    for key in loc:
        if "discriminator" in part:
            parent, part = part, _resolved({"$ref": part["discriminator"]["mapping"][key]}, schema)
            continue
        if len(_choices(part)) > 1 or key == "[key]":
            break
        place, parent = (*place, key), part
        elsewhere = part.get("items" if isinstance(key, int) else "additionalProperties")
        inside = part.get("properties", {}).get(key, elsewhere)
        part = _one(inside if isinstance(inside, dict) else {}, schema)
    return place, parent, part


def _one(part: Schema, schema: Schema) -> Schema:
    """Without the reference, and without the alternative that the key is missing."""
    choices = _choices(_resolved(part, schema))
    return _resolved(choices[0], schema) if len(choices) == 1 else part


def _resolved(part: Schema, schema: Schema) -> dict[str, Any]:
    while "$ref" in part:
        part = schema["$defs"][part["$ref"].rpartition("/")[2]]
    return dict(part)


def _choices(part: Schema) -> list[Schema]:
    return [each for each in part.get("anyOf", [part]) if each.get("type") != "null"]
