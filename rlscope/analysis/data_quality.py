"""What the analysis could not see: skipped files, dropped rows, workers without an end, clocks that disagree."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import polars as pl

from rlscope.trace.completeness import NOT_KNOWN, Completeness
from rlscope.trace.files import SkippedFile
from rlscope.trace.imported import Certainty, Imported
from rlscope.trace.store import OpenRun


@dataclass(frozen=True, slots=True)
class ClockOffset:
    """A host whose events come before their causes by at least offset_s, judged against another host."""

    host: str
    against: str
    offset_s: float
    uncertainty_s: float | None


@dataclass(frozen=True, slots=True)
class SampledEngine:
    """An engine that was read from outside now and then, not by a hook at each pass."""

    worker_id: str
    interval_s: float
    """Median time between two readings."""
    knows_busy: bool
    """Whether its time inside forward passes is a counter of its own; without one it is unknown."""


@dataclass(frozen=True, slots=True)
class DataQuality:
    """What the analysis could not see, and how much of it."""

    skipped_files: tuple[SkippedFile, ...]
    dropped_rows: Mapping[str, int]
    """Rows that capture dropped, by table."""
    workers_without_end: tuple[str, ...]
    """Workers without a recorded stop: killed, or still running."""
    clock_offsets: tuple[ClockOffset, ...]
    gaps: tuple[str, ...]
    """Everything else, one sentence each."""
    sampled_engines: tuple[SampledEngine, ...] = ()
    imported: Imported | None = None
    """Where an imported run comes from, and how sure its tables are; None for a run that hooks recorded."""
    completeness: Completeness = NOT_KNOWN
    """Whether every row that the workers wrote was read."""


_WHAT_IS_LOST: Final[Mapping[str, str]] = {
    "samples": "staleness and response lengths are unknown",
    "deliveries": "which samples were trained on is unknown, and with it throughput and staleness",
    "engine_steps": "batch sizes are unknown, and samplers' time is only as detailed as their own spans",
    "train_steps": "when the trainers trained is unknown",
    "weight_updates": "what weight updates cost is unknown",
    "activities": "why a worker was idle is unknown: that time is unattributed",
}


_NEEDS_TIMES: Final[Mapping[str, tuple[str, ...]]] = {
    "weight_updates": ("weight_update_spread",),
    "samples": ("sample_strips",),
}
"""Answers that mean nothing where the times of a table are laid out rather than recorded."""


def leave_out_laid_out(imported: Imported | None, answers: dict[str, pl.DataFrame]) -> None:
    """Empty the answers that only recorded times could give."""
    for table, origin in imported.tables.items() if imported is not None else ():
        if origin.certainty is not Certainty.RECORDED:
            answers.update({name: answers[name].clear() for name in _NEEDS_TIMES.get(table, ()) if name in answers})


def assess_quality(run: OpenRun, answers: Mapping[str, pl.DataFrame]) -> DataQuality:
    """Gather what is missing from the run itself and the answers about faults, clocks, extents and sampled engines."""
    extents = answers["worker_extents"]
    empty = tuple(f"{table}: no rows; {lost}" for table, lost in _WHAT_IS_LOST.items() if not run.row_counts[table])
    faults = tuple(
        f"{row['table_name']}: {row['rows']:,} rows {row['fault']}"
        for row in answers["row_faults"].iter_rows(named=True)
    )
    return DataQuality(
        skipped_files=run.skipped_files,
        dropped_rows=run.dropped_rows,
        workers_without_end=tuple(extents.filter(~pl.col("has_end"))["worker_id"]),
        clock_offsets=_clock_offsets(answers["clock_bounds"]),
        gaps=(*run.gaps, *empty, *faults),
        imported=run.imported,
        sampled_engines=tuple(
            SampledEngine(row["worker_id"], row["interval_s"], row["knows_busy"])
            for row in answers["sampled_engines"].iter_rows(named=True)
        ),
        completeness=run.completeness,
    )


def _clock_offsets(bounds: pl.DataFrame) -> tuple[ClockOffset, ...]:
    """The pairs of hosts for which no difference at all contradicts the order of causes."""
    offsets: list[ClockOffset] = []
    for row in bounds.iter_rows(named=True):
        least_ns, most_ns = row["least_ns"], row["most_ns"]
        if (least_ns is None or least_ns <= 0) and (most_ns is None or most_ns >= 0):
            continue
        known = [bound for bound in (least_ns, most_ns) if bound is not None]
        consistent = len(known) == 2 and least_ns <= most_ns
        offsets.append(
            ClockOffset(
                host=row["host"],
                against=row["against"],
                offset_s=sum(known) / len(known) / 1e9,
                uncertainty_s=(most_ns - least_ns) / 2e9 if consistent else None,
            )
        )
    return tuple(offsets)
