"""A list of runs in words: the table and its notes, and as CSV."""

import csv
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from rlscope import format as fmt
from rlscope.comparison.history import NAMES, RunEntry
from rlscope.model.causes import Cause
from rlscope.reports.blocks import Block, Bullets, Paragraph, Table

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
    """Return the price of a million tokens; in GPU-hours if the run has no price."""
    if entry.cost_per_million_tokens is not None:
        return f"{fmt.significant(entry.cost_per_million_tokens)} {entry.currency or ''}".rstrip()
    hours = entry.gpu_hours_per_million_tokens
    return fmt.NO_DATA if hours is None else f"{fmt.significant(hours)} GPU-h"


def _text(value: object) -> str:
    return "–" if value is None else str(value)


@dataclass(frozen=True, slots=True)
class _Column:
    """A column of the table."""

    title: str
    write: Callable[[RunEntry], str]
    is_number: bool = False
    is_wide: bool = False
    """Whether only a wide terminal has it."""


_COLUMNS: Final[tuple[_Column, ...]] = (
    _Column("path", lambda run: run.path),
    _Column("date", lambda run: fmt.instant(run.started_ns).removesuffix(" UTC")[:16], is_wide=True),
    _Column("framework", lambda run: _text(run.framework), is_wide=True),
    _Column("layout", lambda run: _text(run.layout)),
    _Column("steady\ntokens/s", lambda run: fmt.si(run.tokens_per_s) + PROMPTS_MARK * _is_marked(run), is_number=True),
    _Column("bottleneck", lambda run: _text(run.bottleneck) + OPEN_MARK * _is_open(run)),
    _Column("staleness\np95, run", lambda run: _text(run.staleness_p95), is_number=True),
    _Column("cost of 1M\ntokens, run", _cost, is_number=True, is_wide=True),
    _Column("alerts", lambda run: _text(run.alerts), is_number=True, is_wide=True),
)


def as_csv(entries: Sequence[RunEntry]) -> str:
    """Return every key of the JSON as a column; unknown values are empty."""
    text = io.StringIO()
    rows = csv.DictWriter(text, NAMES, lineterminator="\n")
    rows.writeheader()
    rows.writerows({name: getattr(each, name) for name in NAMES} for each in entries)
    return text.getvalue().rstrip("\n")


def list_blocks(entries: Sequence[RunEntry]) -> list[Block]:
    """Return the runs, those that could not be read, and the meanings of columns and marks."""
    rows = [[fmt.printable(each.write(run)) for each in _COLUMNS] for run in entries if run.problem is None]
    unread = [f"{each.path}: not analyzed: {fmt.printable(each.problem)}" for each in entries if each.problem]
    numbers = frozenset(place for place, each in enumerate(_COLUMNS) if each.is_number)
    wide = frozenset(place for place, each in enumerate(_COLUMNS) if each.is_wide)
    table = Table("Runs", [each.title for each in _COLUMNS], rows, "stacks", numbers, wide=wide)
    said = (
        f"{fmt.counted(len(entries), 'run')}. {SCOPES}",
        "Alerts are those of severity warning or critical of the built-in rules.",
        *(f"{mark} {note}" for mark, note, holds in _MARKS if any(map(holds, entries))),
    )
    return [table, *([Bullets(unread)] if unread else []), *(Paragraph(note, "note") for note in said)]
