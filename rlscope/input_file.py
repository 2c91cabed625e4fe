"""Reading of TOML files that people write, with errors that name the key.

A pydantic model defines the contents of a file. Its JSON Schema is published, and errors take the expected value from
the same schema, so the two agree. Conditions between keys are checked by the reader of each kind of file.
"""

import stat
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final, TypeGuard, TypeVar

from pydantic import TypeAdapter, ValidationError
from pydantic.json_schema import GenerateJsonSchema

from rlscope.errors import RlscopeError

T = TypeVar("T")
Place = tuple[str | int, ...]
"""Path of an entry: the keys and list positions that lead to it."""
Schema = Mapping[str, Any]
"""A JSON Schema, or a part of one."""

LARGEST_BYTES: Final = 4 * 10**6
"""Maximum size of a rules file, a plan or SQL. Files that people write have kilobytes."""
_LONGEST_FOUND: Final = 60
"""Maximum characters of a value that an error repeats."""


@dataclass(frozen=True, slots=True)
class FileKind:
    """A kind of file: its name in errors, and the next step that errors suggest."""

    noun: str
    """Name with its article, such as "a plan"."""
    example: str
    """Sentence that says how to get an example file."""
    error: type[RlscopeError] = RlscopeError
    advice: Mapping[str, str] = field(default_factory=dict[str, str])
    """Next step for errors below a top-level key. Other keys use `example`."""


@dataclass(frozen=True, slots=True)
class ParsedFile:
    """A parsed file."""

    name: str
    """Name in errors: the file's path."""
    kind: FileKind
    document: Mapping[str, object]

    def error(self, place: Place, *, found: str, expected: str, next_step: str | None = None) -> RlscopeError:
        """Build an error that names file and key. The default next step comes from the kind of file."""
        where = f"{self.name}, {dotted(place)}" if place else self.name
        return self.kind.error.of(where, found=found, expected=expected, next_step=next_step or self.advice(place))

    def advice(self, place: Place) -> str:
        """Return the default next step for an entry."""
        return self.kind.advice.get(str(place[0]), self.kind.example) if place else self.kind.example

    def unknown(self, place: Place, noun: str, name: str, choices: Sequence[str]) -> RlscopeError:
        """Build the error for a name that is not among the choices. It suggests the nearest choice."""
        found, expected = f"unknown {noun} {_shown(name)}", "one of " + ", ".join(choices)
        return self._hinted(place, found, expected, did_you_mean(name, choices))

    def refuse_repeated(self, key: str, names: Sequence[str], noun: str) -> None:
        """Raise an error if two tables of a list, which are called `noun`, have the same name."""
        for index, name in enumerate(names):
            if name in names[:index]:
                expected = f"a name of its own for every {noun}"
                raise self.error((key, index, "name"), found=repr(name), expected=expected)

    def _hinted(self, place: Place, found: str, expected: str, hint: str | None) -> RlscopeError:
        step = self.advice(place)
        return self.error(place, found=found, expected=expected, next_step=f"{hint} {step}" if hint else step)

    def validated(self, model: TypeAdapter[T]) -> T:
        """Return the document as its model. Raises the error of the file's kind for the first invalid entry."""
        try:
            return model.validate_python(self.document)
        except ValidationError as error:
            raise self._refusal(error, json_schema(model)) from None

    def _refusal(self, error: ValidationError, schema: Schema) -> RlscopeError:
        faults = [_Fault.of(each, schema, self.document) for each in error.errors(include_url=False)]
        # Report a misspelled key first: it usually explains a missing key.
        fault = min(faults, key=lambda each: not each.is_unknown_key)
        return self._hinted(fault.place, fault.found, fault.expected, fault.hint)


@dataclass(frozen=True, slots=True)
class _Fault:
    """A validation error of pydantic, expressed in terms of the file and its schema."""

    place: Place
    found: str
    expected: str
    hint: str | None = None
    is_unknown_key: bool = False

    @classmethod
    def of(cls, error: Mapping[str, Any], schema: Schema, document: object) -> "_Fault":
        """Build it from an item of `ValidationError.errors()`."""
        kind, loc = error["type"], error["loc"]
        place, parent, part = _follow(loc, schema)
        if kind in ("unexpected_keyword_argument", "extra_forbidden") and place[-1:] == loc[-1:]:
            return cls._unknown_key(place, tuple(parent["properties"]))
        if loc[-1:] == ("[key]",):
            return cls._unknown_key((*place, str(error["input"])), part.get("propertyNames", {}).get("enum", ()))
        expected, known = describe(part, schema), part.get("enum", ())
        if kind == "value_error":
            expected = str(error["ctx"]["error"])
        value = _value(document, place)
        hint = did_you_mean(value, known) if isinstance(value, str) else None
        return cls(place, _found(value, part), expected, hint)

    @classmethod
    def _unknown_key(cls, place: Place, known: Sequence[str]) -> "_Fault":
        name = str(place[-1])
        return cls(place, f"unknown key {_shown(name)}", "one of " + ", ".join(known), did_you_mean(name, known), True)


def did_you_mean(name: str, choices: Sequence[str]) -> str | None:
    """Return a question that suggests the nearest choice. None if no choice is near."""
    near = get_close_matches(name, choices, n=1)
    return f"Did you mean {near[0]!r}?" if near else None


def dotted(place: Place) -> str:
    """Return a place as text, such as rules[0].labels.severity."""
    return "".join(f"[{each}]" if isinstance(each, int) else f".{each}" for each in place).removeprefix(".")


def read_source(path: Path, kind: FileKind) -> ParsedFile:
    """Read and parse a file. Raises the error of its kind."""
    try:
        text = read_regular(path).decode("utf-8")
    except OSError as error:
        raise kind.error.of(
            path, found=error.strerror or str(error), expected=kind.noun, next_step=kind.example
        ) from error
    except UnicodeDecodeError as error:
        raise kind.error.of(path, found="text that is not UTF-8", expected=kind.noun, next_step=kind.example) from error
    return parse_source(text, str(path), kind)


def read_regular(path: Path) -> bytes:
    """Read a file that a person wrote. Raises OSError if it is a pipe, which may never end, or too large."""
    facts = path.stat()
    if not stat.S_ISREG(facts.st_mode) and not stat.S_ISDIR(facts.st_mode):
        raise OSError(None, "a pipe or a device, not a file")
    if facts.st_size > LARGEST_BYTES:
        raise OSError(None, f"a file of {facts.st_size:,} bytes, above {LARGEST_BYTES:,}")
    return path.read_bytes()


def is_integer(value: object, bits: int = 64) -> TypeGuard[int]:
    """Return whether a JSON value is a whole number that fits in a signed column of that width."""
    # `isinstance` would accept True. This runs half a million times for ten thousand workers.
    return type(value) is int and (value if value >= 0 else ~value).bit_length() < bits


def parse_source(text: str, name: str, kind: FileKind) -> ParsedFile:
    """Parse the text of a file. Raises the error of its kind if the text is not TOML."""
    try:
        document = tomllib.loads(text)
        repr(document)  # Errors repeat values, and Python writes no whole number of more than 4,300 digits.
    except tomllib.TOMLDecodeError as error:
        raise _unreadable(name, kind, str(error)) from error
    except ValueError as error:
        raise _unreadable(name, kind, "a number of thousands of digits") from error
    except RecursionError as error:
        raise _unreadable(name, kind, "nested too deep") from error
    return ParsedFile(name, kind, document)


def _unreadable(name: str, kind: FileKind, why: str) -> RlscopeError:
    found, expected = f"text that is not TOML ({why})", f"{kind.noun} in TOML"
    return kind.error.of(name, found=found, expected=expected, next_step=kind.example)


class _UntitledSchema(GenerateJsonSchema):
    """Schema generator that omits the titles, which only repeat each key's name."""

    def field_title_should_be_set(self, schema: Any) -> bool:  # noqa: ANN401  # the type of pydantic's own signature
        return False


def json_schema(model: TypeAdapter[Any]) -> dict[str, Any]:
    """Return the JSON Schema of the input of a model."""
    return _on_one_line(model.json_schema(schema_generator=_UntitledSchema))


def _on_one_line(part: Any) -> Any:  # noqa: ANN401  # whatever a schema holds
    """Return a part of a schema with each description, which may be a docstring of several lines, on one line."""
    if isinstance(part, list):
        return [_on_one_line(each) for each in part]
    if not isinstance(part, dict):
        return part
    inside = {key: _on_one_line(each) for key, each in part.items()}
    text = inside.get("description")
    return inside | {"description": " ".join(text.split())} if isinstance(text, str) else inside


def describe(part: Schema, schema: Schema, *, table: str = "a table") -> str:
    """Describe the values that a part of a schema allows, for example "a whole number at least 1".

    Args:
        part: The part to describe.
        schema: The whole schema, which resolves references.
        table: Name of an object in the format of the file.
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
        bounds = [f"{word} {part[key]:,.10g}" for key, word in ends if key in part and abs(part[key]) < _BITS]
        return " ".join([noun, *([" and ".join(bounds)] if bounds else [])])

    return words


def _string(part: Schema) -> str:
    if "enum" in part or "const" in part:
        return "one of " + ", ".join(map(repr, part.get("enum", [part.get("const")])))
    examples = " or ".join(map(repr, part.get("examples", ())))
    noun = "a non-empty string" if part.get("minLength") else "a string"
    return f"{noun} such as {examples}" if examples else noun


_FEW: Final = 3
"""Maximum number of keys of a table that an error lists."""
_BITS: Final = 2**62
"""Bounds above this only reflect the width of the number's column, so errors omit them."""
_WORDS: Final[Mapping[str, Callable[[Schema], str]]] = {
    "integer": _number("a whole number"),
    "number": _number("a number"),
    "boolean": lambda _: "true or false",
    "string": _string,
}


_MISSING: Final = object()


def _value(document: object, place: Place) -> object:
    """Return the value at a place, or `_MISSING` if there is none."""
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
        return "a value that is hidden because it may be secret"
    return _shown(value)


def _shown(value: object) -> str:
    shown = repr(value)
    return shown if len(shown) < _LONGEST_FOUND else f"{type(value).__name__} of {len(shown)} characters"


def _follow(loc: Sequence[str | int], schema: Schema) -> tuple[Place, Schema, Schema]:
    """Return the place that pydantic names, the schema around it, and its own schema.

    The path stops at an entry that allows several kinds of value, because the fault of each kind would not help.
    """
    place: Place = ()
    parent, part = schema, _one(schema, schema)
    for key in loc:
        if len(_choices(part)) > 1 or key == "[key]" or loc[len(place) + 1 :] == ("[key]",):
            break
        place, parent = (*place, key), part
        elsewhere = part.get("items" if isinstance(key, int) else "additionalProperties")
        inside = part.get("properties", {}).get(key, elsewhere)
        part = _one(inside if isinstance(inside, dict) else {}, schema)
    return place, parent, part


def _one(part: Schema, schema: Schema) -> Schema:
    """Return a part with its reference resolved and without the alternative that the key is missing."""
    choices = _choices(_resolved(part, schema))
    return _resolved(choices[0], schema) if len(choices) == 1 else part


def _resolved(part: Schema, schema: Schema) -> dict[str, Any]:
    while "$ref" in part:
        part = schema["$defs"][part["$ref"].rpartition("/")[2]]
    return dict(part)


def _choices(part: Schema) -> list[Schema]:
    return [each for each in part.get("anyOf", [part]) if each.get("type") != "null"]
