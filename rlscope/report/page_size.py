"""How the page stays small: rows of charts by column, and pictures left out, largest first, until it fits.

A still goes before a chart that a script draws: it is only for viewers without scripts. The numbers of a picture stay
on the page whatever becomes of it.
"""

import json
from collections.abc import Mapping
from typing import Any, Final

PAGE_MAX_BYTES: Final = 3_000_000


def packed(spec: str) -> str:
    """The chart with each name of a column written once and not in every row; `report.js` makes rows of it again."""
    document: dict[str, Any] = json.loads(spec)
    document["datasets"] = {name: _columns(rows) for name, rows in document.get("datasets", {}).items()}
    return json.dumps(document, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")


def fitting(sizes_bytes: Mapping[str, int], room_bytes: int) -> set[str]:
    """The names of what stays where the largest are left out until the rest fits the room."""
    kept, sum_bytes = set[str](), 0
    for name in sorted(sizes_bytes, key=lambda name: (sizes_bytes[name], name)):
        sum_bytes += sizes_bytes[name]
        if sum_bytes > room_bytes:
            break
        kept.add(name)
    return kept


def _columns(rows: list[dict[str, Any]]) -> list[dict[str, Any]] | dict[str, list[Any]]:
    """The rows as columns; as they are where not all of them have the same ones."""
    if not rows or any(row.keys() != rows[0].keys() for row in rows):
        return rows
    return {name: [row[name] for row in rows] for name in rows[0]}
