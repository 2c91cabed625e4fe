"""A list of runs in words: the cells and notes of every format, as CSV, and as text for a file or a terminal."""

import csv
import io
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from rlscope import format as fmt
from rlscope.comparison.history import COLUMNS, NAMES, RunEntry
from rlscope.model.causes import Cause
from rlscope.reports.blocks import Block, Bullets, Paragraph, Table

SHOWN: Final = (
    "date",
    "path",
    "framework",
    "layout",
    "tokens_per_s",
    "bottleneck",
    "staleness_p95",
    "cost",
    "alerts",
)
"""Columns of the text and of the HTML table. `cost` is in GPU-hours if the run has no price."""
TITLES: Final[Mapping[str, str]] = {
    "tokens_per_s": "steady tokens/s",
    "staleness_p95": "staleness p95, whole run",
    "cost": "cost of 1M tokens, whole run",
}
SCOPES: Final = "Tokens/s are of the steady state, staleness and cost of the whole run."
PROMPTS_MARK: Final = "*"
PROMPTS_NOTE: Final = (
    "The trainer's count of tokens, prompts included: the log has no other. Not comparable with the other rates."
)
OPEN_MARK: Final = "?"
OPEN_NOTE: Final = "Trainers wait for samples; a log of the trainer alone does not tell whether samplers are slow."


def cells(entry: RunEntry) -> list[str]:
    """Return the shown columns of a run."""
    return [fmt.printable(_WRITE[column](entry)) for column in SHOWN]


def _is_marked(entry: RunEntry) -> bool:
    return bool(entry.counts_prompts) and entry.tokens_per_s is not None


def notes(entries: Sequence[RunEntry]) -> list[str]:
    """Return the meanings of the marks in the shown columns."""
    said = ((PROMPTS_MARK, PROMPTS_NOTE, _is_marked), (OPEN_MARK, OPEN_NOTE, _is_open))
    return [f"{mark} {note}" for mark, note, holds in said if any(map(holds, entries))]


def _is_open(entry: RunEntry) -> bool:
    return bool(entry.hides_samplers) and entry.bottleneck == Cause.SAMPLERS


def _cost(entry: RunEntry) -> str:
    if entry.cost_per_million_tokens is not None:
        return f"{fmt.significant(entry.cost_per_million_tokens)} {entry.currency or ''}".rstrip()
    hours = entry.gpu_hours_per_million_tokens
    return fmt.NO_DATA if hours is None else f"{fmt.significant(hours)} GPU-h"


def _text(column: str) -> Callable[[RunEntry], str]:
    def write(entry: RunEntry) -> str:
        held = entry.value(column)
        return "–" if held is None else str(held)

    return write


_WRITE: Final[Mapping[str, Callable[[RunEntry], str]]] = {
    **{column: _text(column) for column in COLUMNS},
    "date": lambda entry: fmt.instant(entry.started_ns).removesuffix(" UTC")[:16],
    "tokens_per_s": lambda entry: fmt.si(entry.tokens_per_s) + PROMPTS_MARK * _is_marked(entry),
    "bottleneck": lambda entry: _text("bottleneck")(entry) + OPEN_MARK * _is_open(entry),
    "cost": _cost,
}


_LEFT_OUT_FIRST: Final = ("framework", "alerts", "cost", "layout", "staleness_p95", "date")
"""Columns to drop on a narrow terminal, in this order."""
_HEADINGS: Final[Mapping[str, str]] = {
    "tokens_per_s": "steady\ntokens/s",
    "staleness_p95": "staleness\np95, run",
    "cost": "cost of 1M\ntokens, run",
}
"""Column titles on a terminal."""
NUMBERS: Final = frozenset({"tokens_per_s", "staleness_p95", "cost", "alerts"})


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


def list_blocks(entries: Sequence[RunEntry]) -> list[Block]:
    """Return the runs, those that could not be read, and the meanings of columns and marks."""
    # The path names a run.
    columns = sorted(SHOWN, key=lambda column: column != "path")
    places, unread = [SHOWN.index(column) for column in columns], _unread(entries)
    rows = [[row[place] for place in places] for row in _rows(entries)]
    numbers = frozenset(place for place, column in enumerate(columns) if column in NUMBERS)
    table = Table("Runs", [TITLES.get(column, column) for column in columns], rows, "stacks", numbers)
    said = (SCOPES, "Alerts are those of severity warning or critical of the built-in rules.", *notes(entries))
    return [table, *([Bullets(unread)] if unread else []), *(Paragraph(note, "note") for note in said)]


def _rows(entries: Sequence[RunEntry]) -> list[list[str]]:
    return [cells(each) for each in entries if each.problem is None]


def _unread(entries: Sequence[RunEntry]) -> list[str]:
    return [f"{each.path}: not analyzed: {fmt.printable(each.problem)}" for each in entries if each.problem]


def _widths(rows: Sequence[Sequence[str]]) -> list[int]:
    return [max(map(len, cells)) for cells in zip(*rows, strict=True)]


def _table(rows: Sequence[Sequence[str]], columns: Sequence[str], widths: Sequence[int]) -> list[str]:
    return ["  ".join(_padded(*cell) for cell in zip(row, widths, columns, strict=True)).rstrip() for row in rows]


def _padded(cell: str, width: int, column: str) -> str:
    return cell.rjust(width) if column in NUMBERS else cell.ljust(width)
