"""Words of a list of runs: its columns, the cells of a run, and the notes below it."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from rlscope import format as fmt
from rlscope.comparison.history import COLUMNS, RunEntry

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
    """Return the shown columns of a run; for a run that could not be read, the reason."""
    if entry.problem is not None:
        return ["", fmt.printable(entry.path), *[""] * (len(SHOWN) - 3), fmt.printable(entry.problem)]
    return [fmt.printable(_WRITE[column](entry)) for column in SHOWN]


def _is_marked(entry: RunEntry) -> bool:
    return bool(entry.counts_prompts) and entry.tokens_per_s is not None


def notes(entries: Sequence[RunEntry]) -> list[str]:
    """Return the meanings of the marks in the shown columns."""
    said = ((PROMPTS_MARK, PROMPTS_NOTE, _is_marked), (OPEN_MARK, OPEN_NOTE, _is_open))
    return [f"{mark} {note}" for mark, note, holds in said if any(map(holds, entries))]


def _is_open(entry: RunEntry) -> bool:
    return bool(entry.hides_samplers) and entry.bottleneck == "samplers"


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
