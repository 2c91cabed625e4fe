"""Frameworks: one TOML table for each framework and engine that rlscope knows."""

import re
from functools import cache
from pathlib import Path
from typing import Final

from rlscope.frameworks.table import Framework, read_table

FOLDER: Final = Path(__file__).parent


@cache
def frameworks() -> tuple[Framework, ...]:
    """Return all tables, by name."""
    return tuple(read_table(path) for path in sorted(FOLDER.glob("*.toml")))


def framework_of(setting: object) -> Framework | None:
    """Return the framework that a run's setting `framework` names, such as "TRL 1.0 with vLLM"; None if unknown."""
    text = str(setting or "").lower().replace("_", "-")
    found = [(match.start(), each) for each in frameworks() if (match := re.search(rf"\b{each.name}\b", text))]
    return min(found, key=lambda pair: pair[0])[1] if found else None


def framework(name: str) -> Framework:
    """Return the table of a framework. Raises KeyError if there is none."""
    return {each.name: each for each in frameworks()}[name]
