"""What the commands print for programs, one JSON document a command, and the reports of alert rules.

Here is what every document is made of: a frozen pydantic model. A key is declared with its type, its unit in its name,
and a sentence on what it holds, from which `docs/schema/` and `docs/json.md` are made. Keys come in the order of their
declaration, those of base classes first, and those of the last base before those of the first. They are a contract:
within a version keys are only ever added.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Final, Self, TypeAlias

from pydantic import BaseModel, BeforeValidator, ConfigDict, WithJsonSchema
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from rlscope.format import finite
from rlscope.text_out import as_json

Json: TypeAlias = "str | int | float | bool | Mapping[str, Json] | Sequence[Json] | None"


def _null_unless_finite(value: object) -> object:
    return finite(value) if isinstance(value, float) else value


FINITE: Final = BeforeValidator(_null_unless_finite)
"""JSON has neither NaN nor the infinities: they become null."""
Figure = Annotated[
    # A whole number stays one: 2 is not printed as 2.0.
    Annotated[int | float, WithJsonSchema({"type": "number"})] | None,
    FINITE,
]
"""A number as measured; null where it is not known."""

SCHEMA_VERSION: Final = 1
"""Of every document. Changes only if a key changes its meaning or goes."""
_DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"


class Document(BaseModel):
    """A JSON object with known keys. Wrong types, missing keys and keys too many raise pydantic's ValidationError."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        allow_inf_nan=False,
        use_attribute_docstrings=True,
        json_schema_serialization_defaults_required=True,
        model_title_generator=lambda model: model.__name__.removesuffix("Json"),
    )

    @classmethod
    def read(cls, fact: object) -> Self:
        """The document whose every key is the attribute of that name of a fact, and so on for what is inside it."""
        return cls.model_validate(fact, from_attributes=True)

    def as_dict(self) -> dict[str, Json]:
        """The document as `json.loads` would give it back."""
        return self.model_dump(mode="json", by_alias=True)

    def as_json(self) -> str:
        """The document as the commands print it, without a newline at its end."""
        return as_json(self.as_dict(), indent=2)

    @classmethod
    def published_schema(cls, name: str) -> JsonSchemaValue:
        """The JSON Schema of what is printed; name: of the document, which its identifier ends in."""
        schema = cls.model_json_schema(mode="serialization", schema_generator=_SchemaWriter)
        return {"$schema": _DIALECT, "$id": f"urn:rlscope:{name}:{SCHEMA_VERSION}", **schema}


class _SchemaWriter(GenerateJsonSchema):
    """JSON Schema without what pydantic adds and no reader needs."""

    def field_title_should_be_set(self, schema: object) -> bool:
        """No titles that repeat the key."""
        return False

    def default_schema(self, schema: core_schema.WithDefaultSchema) -> JsonSchemaValue:
        """No defaults: every key is always printed."""
        return self.generate_inner(schema["schema"])

    def normalize_name(self, name: str) -> str:
        """Definitions by the name of what they are."""
        return super().normalize_name(name).removesuffix("Json")
