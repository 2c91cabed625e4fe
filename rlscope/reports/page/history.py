"""A list of runs as one HTML file without external resources, and as a table for a notebook."""

from collections.abc import Sequence
from importlib import metadata
from typing import Final, NamedTuple

from markupsafe import Markup

from rlscope import format as fmt
from rlscope.comparison.history import RunEntry
from rlscope.reports.page.html import content_policy
from rlscope.reports.page.templating import asset, filled
from rlscope.reports.text.history import SHOWN, TITLES, cells, notes

_NUMBERS: Final = frozenset({"tokens_per_s", "staleness_p95", "cost", "alerts"})


class _Column(NamedTuple):
    title: str
    is_number: bool


class _Row(NamedTuple):
    cells: list[str]
    problem: str
    rate_ratio: float | None
    """Rate relative to the largest one in the list, 0..1: the length of a bar."""


def render_list(entries: Sequence[RunEntry], folder: str) -> str:
    """Return the report as one string."""
    return _filled(entries, folder, is_page=True)


def list_table(entries: Sequence[RunEntry], folder: str) -> str:
    """Return the table alone."""
    return _filled(entries, folder, is_page=False)


def _in_words(values: list[str]) -> list[str]:
    """Return the cells with the bottleneck in words instead of the value that filters use."""
    return [
        value.replace("_", " ") if name == "bottleneck" else value for name, value in zip(SHOWN, values, strict=True)
    ]


def _filled(entries: Sequence[RunEntry], folder: str, *, is_page: bool) -> str:
    most = max((each.tokens_per_s or 0.0 for each in entries), default=0.0)
    rows = [
        _Row(
            _in_words(cells(each)),
            fmt.printable(each.problem or ""),
            each.tokens_per_s / most if each.tokens_per_s is not None and most else None,
        )
        for each in entries
    ]
    return filled(
        "history.html",
        is_page=is_page,
        version=metadata.version("rlscope"),
        folder=folder,
        columns=[_Column(TITLES.get(column, column), column in _NUMBERS) for column in SHOWN],
        rows=rows,
        how_many=fmt.counted(len(entries), "run", "runs"),
        notes=notes(entries),
        style=Markup(asset("report.css")),
        policy=content_policy(()),
    )
