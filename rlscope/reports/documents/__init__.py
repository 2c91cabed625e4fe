"""The JSON documents that the commands print, and the reports of alert rules.

A document is a dataclass that `rlscope/document.py` prints and describes. The parts about the model and about a
comparison are still pydantic models, whose base is here.
"""

from typing import Annotated, Final, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, WithJsonSchema
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from rlscope.document import Json, as_dict, dump
from rlscope.format import finite


def _null_unless_finite(value: object) -> object:
    return finite(value) if isinstance(value, float) else value


FINITE: Final = BeforeValidator(_null_unless_finite)
"""Validator that turns NaN and the infinities into null, because JSON has neither."""
Figure = Annotated[
    # Keep whole numbers whole: print 2, not 2.0.
    Annotated[int | float, WithJsonSchema({"type": "number"})] | None,
    FINITE,
]
"""A number as measured; null if it is unknown."""

SCHEMA_VERSION: Final = 1
"""Version of every document. It changes only if a key is removed or changes its meaning."""
_DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"


class Document(BaseModel):
    """A JSON object with known keys.

    Raises pydantic's ValidationError if a key is missing or unknown, or if a value has the wrong type.
    """

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
        """Return the document whose keys are the attributes of `fact` with the same names, recursively."""
        return cls.model_validate(fact, from_attributes=True)

    def as_dict(self) -> dict[str, Json]:
        """Return the document as `json.loads` would parse it."""
        return as_dict(self)

    def as_json(self) -> str:
        """Return the document as the commands print it, without a trailing newline."""
        return dump(self)

    @classmethod
    def published_schema(cls, name: str) -> JsonSchemaValue:
        """Return the JSON Schema of the printed document; `name` becomes the end of its identifier."""
        schema = cls.model_json_schema(mode="serialization", schema_generator=_SchemaWriter)
        return {"$schema": _DIALECT, "$id": f"urn:rlscope:{name}:{SCHEMA_VERSION}", **schema}


class _SchemaWriter(GenerateJsonSchema):
    """Generator of a JSON Schema without pydantic's titles and defaults."""

    def field_title_should_be_set(self, schema: object) -> bool:
        """Return False: titles would repeat the key."""
        return False

    def default_schema(self, schema: core_schema.WithDefaultSchema) -> JsonSchemaValue:
        """Return the schema without its default: every key is always printed."""
        return self.generate_inner(schema["schema"])

    def normalize_name(self, name: str) -> str:
        """Return the name of a definition without the suffix Json."""
        return super().normalize_name(name).removesuffix("Json")
