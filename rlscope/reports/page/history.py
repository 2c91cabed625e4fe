"""A list of runs as one HTML file without external resources, and as a table for a notebook."""

from collections.abc import Sequence
from typing import Final, NamedTuple

from rlscope import format as fmt
from rlscope.comparison.history import RunEntry
from rlscope.reports.page.html import page
from rlscope.reports.page.templating import filled
from rlscope.reports.text.history import NUMBERS, SHOWN, TITLES, cells, notes

_BAR: Final = SHOWN.index("tokens_per_s")
"""Place of the column with a bar, which is as long as the rate relative to the largest one."""


class _Row(NamedTuple):
    cells: list[str]
    problem: str
    rate_ratio: float | None
    """Rate relative to the largest one in the list, 0..1: the length of a bar."""


def render_list(entries: Sequence[RunEntry], folder: str) -> str:
    """Return the report as one string."""
    runs = fmt.counted(len(entries), "run", "runs")
    return page("history.html", f"{runs} in {folder}", _words(entries))


def list_table(entries: Sequence[RunEntry]) -> str:
    """Return the table alone."""
    return filled("history_table.html", **_words(entries))


def _words(entries: Sequence[RunEntry]) -> dict[str, object]:
    most = max((each.tokens_per_s or 0.0 for each in entries), default=0.0)
    rows = [
        _Row(
            _in_words(cells(each)),
            fmt.printable(each.problem or ""),
            each.tokens_per_s / most if each.tokens_per_s is not None and most else None,
        )
        for each in entries
    ]
    columns = [(TITLES.get(column, column), column in NUMBERS) for column in SHOWN]
    return {"columns": columns, "bar": _BAR, "rows": rows, "notes": notes(entries)}


def _in_words(values: list[str]) -> list[str]:
    """Return the cells with the bottleneck in words instead of the value that filters use."""
    return [
        value.replace("_", " ") if name == "bottleneck" else value for name, value in zip(SHOWN, values, strict=True)
    ]
