"""Frameworks: one TOML table for each framework and engine that rlscope knows, in a file that has its name."""

import re
from functools import cache
from pathlib import Path
from typing import Final

from rlscope.frameworks.table import Framework, read_table

FOLDER: Final = Path(__file__).parent
NAMES: Final = tuple(path.stem.replace("_", "-") for path in sorted(FOLDER.glob("*.toml")))


def frameworks() -> tuple[Framework, ...]:
    """Return all tables, by name."""
    return tuple(map(framework, NAMES))


def framework_of(setting: object) -> Framework | None:
    """Return the framework that a run's setting `framework` names, such as "TRL 1.0 with vLLM"; None if unknown."""
    text = str(setting or "").lower().replace("_", "-")
    found = [(match.start(), each) for each in NAMES if (match := re.search(rf"\b{each}\b", text))]
    return framework(min(found, key=lambda pair: pair[0])[1]) if found else None


@cache
def framework(name: str) -> Framework:
    """Return the table of a framework, which is one of NAMES."""
    return read_table(FOLDER / f"{name.replace('-', '_')}.toml")
