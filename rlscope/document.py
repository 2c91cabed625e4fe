"""JSON documents made of dataclasses: how they are printed and read. `docs/generate.py` describes them.

A frozen dataclass is the document: its fields and computed fields are the keys, and their docstrings describe them. A
number that is not finite is printed as null, because JSON has neither NaN nor infinities. Keys are a contract: within
a version they are only added.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from typing import Any, Final, Literal, TypeAlias, TypeVar

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError, computed_field

from rlscope.text_out import as_json

__all__ = [
    "LEFT_OUT",
    "Document",
    "Json",
    "as_dict",
    "computed_field",
    "dump",
    "extended",
    "load",
    "single_values",
]

Json: TypeAlias = "str | int | float | bool | Mapping[str, Json] | Sequence[Json] | None"
_T = TypeVar("_T")
LEFT_OUT: Final = Field(exclude=True)
"""Marks a field that no document has as a key: `Annotated[KIND, LEFT_OUT]`."""

VERSION: Final = 1
"""Version of every document. It changes only if a key is removed or changes its meaning."""
_PRINTED: Final = ConfigDict(arbitrary_types_allowed=True)
_READ: Final = ConfigDict(strict=True, allow_inf_nan=False)


@dataclass(frozen=True)
class Document:
    """A document that a command prints."""

    schema_version: Literal[1] = field(default=VERSION, kw_only=True)
    """Version of this contract."""

    def to_json(self) -> str:
        """Return the document as the command prints it."""
        return dump(self)


@cache
def _adapter(kind: type, *, is_read: bool = False) -> TypeAdapter[Any]:
    # pydantic takes a configuration for a union, but not for a dataclass alone.
    either: Any = kind | None
    return TypeAdapter(either, config=_READ if is_read else _PRINTED)


def as_dict(document: object) -> dict[str, Json]:
    """Return a document as `json.loads` would parse it.

    Raises pydantic's PydanticSerializationError if a value is not of its field's type.
    """
    return _finite(_adapter(type(document)).dump_python(document, mode="json", warnings="error"))


def single_values(document: object) -> dict[str, Json]:
    """Return the keys that hold one value, not objects or lists; an interval is NAME, NAME_low and NAME_high."""
    values: dict[str, Json] = {}
    for name, value in as_dict(document).items():
        if isinstance(value, Mapping) and set(value) == {"value", "low", "high"}:
            values |= {name: value["value"], f"{name}_low": value["low"], f"{name}_high": value["high"]}
        elif not isinstance(value, Mapping | list):
            values[name] = value
    return values


def dump(document: object) -> str:
    """Return a document as the commands print it, without a trailing newline."""
    return as_json(as_dict(document), indent=2)


def load(kind: type[_T], text: bytes) -> _T:
    """Return the document that a JSON text holds. Unknown keys, as of later versions, are ignored.

    Raises ValueError if the text is no such document, naming the first invalid key.
    """
    try:
        return _adapter(kind, is_read=True).validate_json(text)
    except ValidationError as error:
        faults = error.errors(include_url=False)
        # Another version explains every other fault.
        fault = next((each for each in faults if each["loc"] == ("schema_version",)), faults[0])
        place = ".".join(str(each) for each in fault["loc"] if each != kind.__name__)
        raise ValueError(f"{place}: {fault['msg']}" if place else fault["msg"]) from None


def extended(kind: type[_T], *bases: object, **more: object) -> _T:
    """Return a document with the fields that a base has too, as fields or properties, and more fields.

    Of several bases, the first that has a name gives its value. If none has it and a base is None, so is the value.
    """
    names = [each.name for each in fields(kind) if each.name not in more]  # type: ignore[arg-type]
    found = {name: getattr(base, name) for base in reversed(bases) for name in names if hasattr(base, name)}
    unknown = dict.fromkeys(names) if any(base is None for base in bases) else {}
    return kind(**unknown | found | more)


def _finite(value: Any) -> Any:  # noqa: ANN401  # whatever JSON can hold
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    return [_finite(each) for each in value] if isinstance(value, list) else value
