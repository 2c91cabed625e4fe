"""A list of runs as CSV and as a table of text, fitted to a terminal or as wide as it needs to be."""

import csv
import io
import textwrap
from collections.abc import Mapping, Sequence
from typing import Final

from rlscope import format as fmt
from rlscope.comparison.history import NAMES, RunEntry
from rlscope.reports.text.history import SCOPES, SHOWN, TITLES, cells, notes

_LEFT_OUT_FIRST: Final = ("framework", "alerts", "cost", "layout", "staleness_p95", "date")
"""Columns to drop on a narrow terminal, in this order."""
_HEADINGS: Final[Mapping[str, str]] = {
    "tokens_per_s": "steady\ntokens/s",
    "staleness_p95": "staleness\np95, run",
    "cost": "cost of 1M\ntokens, run",
}
"""Column titles on a terminal."""
_RIGHT: Final = frozenset({"tokens_per_s", "staleness_p95", "cost", "alerts"})


def as_text(entries: Sequence[RunEntry]) -> str:
    """Return one line per run, then the number of runs."""
    rows = [[TITLES.get(column, column) for column in SHOWN], *_rows(entries)]
    lines = _table(rows, SHOWN, _widths(rows)) + _unread(entries)
    return "\n".join([*lines, "", fmt.counted(len(entries), "run", "runs"), SCOPES, *notes(entries)])


def on_terminal(entries: Sequence[RunEntry], columns: int, kept: str | None = None) -> str:
    """Return the table for a terminal: two-line headings and the columns that fit; `kept` is never dropped."""
    titles = [_HEADINGS.get(column, f"\n{column}").split("\n") for column in SHOWN]
    rows = [[title[0] for title in titles], [title[1] for title in titles], *_rows(entries)]
    shown, widths, left_out = list(SHOWN), dict(zip(SHOWN, _widths(rows), strict=True)), list[str]()
    for column in _LEFT_OUT_FIRST:
        if sum(widths[each] + 2 for each in shown) - 2 <= columns:
            break
        if column != kept:
            shown.remove(column)
            left_out.append(TITLES.get(column, column))
    places = [SHOWN.index(column) for column in shown]
    lines = _table([[row[place] for place in places] for row in rows], shown, [widths[column] for column in shown])
    said = [fmt.counted(len(entries), "run", "runs"), SCOPES, *notes(entries)]
    if left_out:
        said.append(f"Not shown on a terminal of this width: {', '.join(left_out)}. --format csv has every column.")
    return "\n".join([*lines, *_unread(entries), "", *(textwrap.fill(line, columns) for line in said)])


def as_csv(entries: Sequence[RunEntry]) -> str:
    """Return every key of the JSON as a column; unknown values are empty."""
    text = io.StringIO()
    rows = csv.DictWriter(text, NAMES, lineterminator="\n")
    rows.writeheader()
    rows.writerows({name: getattr(each, name) for name in NAMES} for each in entries)
    return text.getvalue().rstrip("\n")


def _rows(entries: Sequence[RunEntry]) -> list[list[str]]:
    return [cells(each) for each in entries if each.problem is None]


def _unread(entries: Sequence[RunEntry]) -> list[str]:
    return [f"{each.path}: not analyzed: {fmt.printable(each.problem)}" for each in entries if each.problem]


def _widths(rows: Sequence[Sequence[str]]) -> list[int]:
    return [max(map(len, cells)) for cells in zip(*rows, strict=True)]


def _table(rows: Sequence[Sequence[str]], columns: Sequence[str], widths: Sequence[int]) -> list[str]:
    return ["  ".join(_padded(*cell) for cell in zip(row, widths, columns, strict=True)).rstrip() for row in rows]


def _padded(cell: str, width: int, column: str) -> str:
    return cell.rjust(width) if column in _RIGHT else cell.ljust(width)
