"""The published schemas of the JSON documents, and what of a document does not fit one."""

import json
from typing import Any

from jsonschema import Draft202012Validator

from docs.generate import DOCS


def schema(name: str) -> dict[str, Any]:
    return json.loads((DOCS / "schema" / f"{name}.schema.json").read_text(encoding="utf-8"))


def faults(name: str, text: str) -> list[str]:
    """What the published schema does not allow in a printed document."""
    found = Draft202012Validator(schema(name)).iter_errors(json.loads(text))
    return [f"{error.json_path}: {error.message}" for error in found]
