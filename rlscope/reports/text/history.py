"""A list of runs in words: the table and its notes, and as CSV."""

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from rlscope import format as fmt
from rlscope.comparison.history import NAMES, RunEntry
from rlscope.model.causes import Cause
from rlscope.reports.blocks import Block, Bullets, Paragraph, Table

SHOWN: Final[Mapping[str, str]] = {
    "path": "path",
    "started_ns": "date",
    "framework": "framework",
    "layout": "layout",
    "tokens_per_s": "steady\ntokens/s",
    "bottleneck": "bottleneck",
    "staleness_p95": "staleness\np95, run",
    "cost_per_million_tokens": "cost of 1M\ntokens, run",
    "alerts": "alerts",
}
"""Titles of the columns of the table. The cost is in GPU-hours if the run has no price."""
_NUMBERS: Final = frozenset({"tokens_per_s", "staleness_p95", "cost_per_million_tokens", "alerts"})
_WIDE: Final = frozenset({"started_ns", "framework", "cost_per_million_tokens", "alerts"})
"""Columns that only a wide terminal has."""
SCOPES: Final = "Tokens/s are of the steady state, staleness and cost of the whole run."
PROMPTS_MARK: Final = "*"
PROMPTS_NOTE: Final = (
    "The trainer's count of tokens, prompts included: the log has no other. Not comparable with the other rates."
)
OPEN_MARK: Final = "?"
OPEN_NOTE: Final = "Trainers wait for samples; a log of the trainer alone does not tell whether samplers are slow."


def _is_marked(entry: RunEntry) -> bool:
    return bool(entry.counts_prompts) and entry.tokens_per_s is not None


def _is_open(entry: RunEntry) -> bool:
    return bool(entry.hides_samplers) and entry.bottleneck == Cause.SAMPLERS


_MARKS: Final = ((PROMPTS_MARK, PROMPTS_NOTE, _is_marked), (OPEN_MARK, OPEN_NOTE, _is_open))
"""Marks in the shown columns, their meanings, and the runs that have them."""


def _cost(entry: RunEntry) -> str:
    if entry.cost_per_million_tokens is not None:
        return f"{fmt.significant(entry.cost_per_million_tokens)} {entry.currency or ''}".rstrip()
    hours = entry.gpu_hours_per_million_tokens
    return fmt.NO_DATA if hours is None else f"{fmt.significant(hours)} GPU-h"


def _text(entry: RunEntry, column: str) -> str:
    value = getattr(entry, column)
    return "–" if value is None else str(value)


_WRITE: Final[Mapping[str, Callable[[RunEntry], str]]] = {
    "started_ns": lambda entry: fmt.instant(entry.started_ns).removesuffix(" UTC")[:16],
    "tokens_per_s": lambda entry: fmt.si(entry.tokens_per_s) + PROMPTS_MARK * _is_marked(entry),
    "bottleneck": lambda entry: _text(entry, "bottleneck") + OPEN_MARK * _is_open(entry),
    "cost_per_million_tokens": _cost,
}
"""Writers of the cells that are not written as they are."""


def as_csv(entries: Sequence[RunEntry]) -> str:
    """Return every key of the JSON as a column; unknown values are empty."""
    text = io.StringIO()
    rows = csv.DictWriter(text, NAMES, lineterminator="\n")
    rows.writeheader()
    rows.writerows({name: getattr(each, name) for name in NAMES} for each in entries)
    return text.getvalue().rstrip("\n")


def list_blocks(entries: Sequence[RunEntry]) -> list[Block]:
    """Return the runs, those that could not be read, and the meanings of columns and marks."""
    rows = [
        [fmt.printable(_WRITE[column](each) if column in _WRITE else _text(each, column)) for column in SHOWN]
        for each in entries
        if each.problem is None
    ]
    unread = [f"{each.path}: not analyzed: {fmt.printable(each.problem)}" for each in entries if each.problem]
    numbers, wide = (frozenset(map([*SHOWN].index, columns)) for columns in (_NUMBERS, _WIDE))
    table = Table("Runs", tuple(SHOWN.values()), rows, "stacks", numbers, wide=wide)
    said = (
        f"{fmt.counted(len(entries), 'run', 'runs')}. {SCOPES}",
        "Alerts are those of severity warning or critical of the built-in rules.",
        *(f"{mark} {note}" for mark, note, holds in _MARKS if any(map(holds, entries))),
    )
    return [table, *([Bullets(unread)] if unread else []), *(Paragraph(note, "note") for note in said)]
