"""Gaps and faults of a trace: skipped files, dropped rows, workers without an end, clocks that disagree."""

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import polars as pl

from rlscope import format as fmt
from rlscope.trace.clock_offsets import Clocks
from rlscope.trace.completeness import NOT_KNOWN, Completeness
from rlscope.trace.files import SkippedFile
from rlscope.trace.imported import COMPLETE_RATIO, Certainty, Imported
from rlscope.trace.query import ask
from rlscope.trace.store import OpenRun

SHARED_IDS: Final = "share their sample_id and segment with another"
UNRECORDED: Final = "name a sample that was not recorded"
"""Faults of `sample_row_faults`. The first merges samples of several workers; the second hides a delivery's tokens."""
_MOST_LOST_RATIO: Final = 1.0 - COMPLETE_RATIO
_MOST_TRAINED_RATIO: Final = 1.1
"""Trained tokens over generated ones above which several epochs explain them: a run that was resumed also repeats some
of its steps."""


@dataclass(frozen=True, slots=True)
class ClockOffset:
    """A host whose clock differs from another host's clock, according to the order of causes and effects."""

    host: str
    """The host."""
    against: str
    """Reference host, whose clock is taken as correct."""
    offset_s: float
    """Lead over the reference clock, at the start of the run if it drifts. If uncertainty_s is None, a lower bound."""
    uncertainty_s: float | None
    """Uncertainty, in seconds, of the offset and of every corrected time that is compared with a time of the other
    host; None if it is unknown."""
    is_corrected: bool = False
    """Whether every time of the host is corrected, in all tables."""
    drift_ratio: float = 0.0
    """Seconds that the clock gains per second; 0 if the run is too short to show a drift."""


@dataclass(frozen=True, slots=True)
class SampledEngine:
    """An engine that was polled from outside, not recorded by a hook at each pass."""

    worker_id: str
    """Identifier of the worker."""
    interval_s: float
    """Median time between two readings."""
    knows_busy: bool
    """Whether it counts its time inside forward passes. If not, that time is unknown."""


@dataclass(frozen=True, slots=True)
class DataQuality:
    """Gaps and faults of a trace, with their size."""

    skipped_files: tuple[SkippedFile, ...]
    """Files that were not read."""
    dropped_rows: Mapping[str, int]
    """Rows that the recorder dropped, by table."""
    workers_without_end: tuple[str, ...]
    """Workers without a recorded stop: killed, or still running."""
    clock_offsets: tuple[ClockOffset, ...]
    """Hosts whose clocks disagree."""
    gaps: tuple[str, ...]
    """All other gaps, one sentence each."""
    sampled_engines: tuple[SampledEngine, ...] = ()
    """Engines that were polled from outside."""
    imported: Imported | None = None
    """Origin of an imported run and the certainty of its tables. None for a run recorded by hooks."""
    completeness: Completeness = NOT_KNOWN
    """Whether every row that the workers wrote was read."""
    clock_uncertainty_s: float | None = None
    """Maximum error between the times of two hosts: infinite if nothing bounds it, None for a run on one host."""
    no_verdict: tuple[str, ...] = ()
    """Reasons that the rows do not support a verdict; empty if they do."""

    @property
    def refusal(self) -> str | None:
        """Reason that there is no verdict, in one clause. None if a verdict is possible."""
        refused = None if self.imported is None else self.imported.refusal
        return "; ".join([*([refused] if refused else []), *self.no_verdict]) or None


_WHAT_IS_LOST: Final[Mapping[str, str]] = {
    "samples": "staleness and response lengths are unknown",
    "deliveries": "which samples were trained on is unknown, and how stale they were",
    "engine_steps": "batch sizes are unknown, and samplers' time only where an activity or a wait was recorded",
    "train_steps": "when the trainers trained is unknown",
    "weight_updates": "what weight updates cost is unknown",
    "activities": "why a worker was idle is unknown: that time is unattributed",
}


_NEEDS_UPDATE_TIMES: Final = ("weight_update_spread", "weight_update_parts")
"""Answers without meaning if the times of weight updates were laid out by the importer, not recorded."""


def has_update_times(imported: Imported | None) -> bool:
    """Return whether the times of weight updates were recorded, not laid out by the importer."""
    origin = None if imported is None else imported.tables.get("weight_updates")
    return origin is None or origin.certainty is Certainty.RECORDED


def leave_out_laid_out(imported: Imported | None, answers: dict[str, pl.DataFrame]) -> None:
    """Empty the answers that need recorded times."""
    if not has_update_times(imported):
        answers.update({name: answers[name].clear() for name in _NEEDS_UPDATE_TIMES if name in answers})


def assess_quality(run: OpenRun, answers: Mapping[str, pl.DataFrame]) -> DataQuality:
    """Gather gaps and faults from the run and from the answers on faults, clocks, extents and sampled engines."""
    extents = answers["worker_extents"]
    empty = tuple(f"{table}: no rows; {lost}" for table, lost in _WHAT_IS_LOST.items() if not run.row_counts[table])
    faults = tuple(
        f"{row['table_name']}: {row['rows']:,} rows {row['fault']}"
        for row in answers["row_faults"].iter_rows(named=True)
    )
    lost, doubts = tuple(_lost_rows(run, frozenset(extents["worker_id"]))), tuple(_doubts(run, answers))
    return DataQuality(
        skipped_files=run.skipped_files,
        dropped_rows=run.dropped_rows,
        workers_without_end=tuple(extents.filter(~pl.col("has_end"))["worker_id"]),
        clock_offsets=tuple(_clock_offsets(run.clocks)),
        gaps=(*doubts, *run.gaps, *empty, *faults, *contradictions(run.clocks)),
        imported=run.imported,
        sampled_engines=tuple(
            SampledEngine(row["worker_id"], row["interval_s"], row["knows_busy"])
            for row in answers["sampled_engines"].iter_rows(named=True)
        ),
        completeness=run.completeness,
        clock_uncertainty_s=_clock_uncertainty_s(run.clocks),
        no_verdict=(*lost, *doubts),
    )


def _doubts(run: OpenRun, answers: Mapping[str, pl.DataFrame]) -> Iterator[str]:
    """Yield why the counts of samples cannot be right."""
    unrecorded = unrecorded_ratio(run, answers)
    if unrecorded > _MOST_LOST_RATIO and any(file.path.split("/")[0] == "samples" for file in run.skipped_files):
        yield f"samples: files were skipped, and {fmt.percent(unrecorded)} of the trained samples are not in the others"
    shared, stored = _faulty(answers, SHARED_IDS), run.row_counts["samples"]
    if shared > _MOST_LOST_RATIO * stored:
        yield f"{shared:,} of {stored:,} sample rows share their id with another, so no token count is right"
    trained, generated = _trained_and_generated(answers)
    # A sample that several steps train on counts in each of them.
    if trained > generated and int(ask(run, "use_faults")["repeated_tokens"].sum()):
        yield (
            f"{fmt.tokens(trained)} were trained and {fmt.tokens(generated)} generated, which cannot be: "
            "some samples were delivered to one step more than once"
        )


def _trained_and_generated(answers: Mapping[str, pl.DataFrame]) -> tuple[int, int]:
    """Return the tokens that were trained on, counted once per use, and those that were generated."""
    trained = answers["delivery_outcomes"].filter(outcome="trained")
    return int(trained["tokens"].sum()), int(answers["token_balance"]["generated_tokens"].sum())


def several_epochs(answers: Mapping[str, pl.DataFrame]) -> str | None:
    """Return why the model does not apply, in one clause, if steps train on samples again; None if few do."""
    trained, generated = _trained_and_generated(answers)
    if trained <= _MOST_TRAINED_RATIO * generated:
        return None
    return (
        f"{fmt.tokens(trained)} were trained and {fmt.tokens(generated)} generated, so steps train on samples again; "
        "the model knows samples that are trained on once. If these are passes over one batch, record them as one step"
    )


def _lost_rows(run: OpenRun, workers: Collection[str]) -> Iterator[str]:
    """Yield the tables of samples that lack so many rows that token counts are wrong."""
    for table in ("samples", "deliveries"):
        gaps = [gap for gap in run.completeness.gaps if gap.table == table and gap.worker_id in workers]
        missing = sum(gap.rows for gap in gaps if gap.kind == "missing")
        written = missing + run.row_counts[table]
        if missing > _MOST_LOST_RATIO * written:
            yield f"{table}: {missing:,} of {written:,} rows that were written are lost"


def unrecorded_ratio(run: OpenRun, answers: Mapping[str, pl.DataFrame]) -> float:
    """Return the share of the trained samples, 0 to 1, that were not recorded and so have no tokens."""
    trained = int(answers["delivery_outcomes"].filter(outcome="trained")["samples"].sum())
    if not trained or _faulty(answers, UNRECORDED) <= _MOST_LOST_RATIO * trained:
        return 0.0
    return min(1.0, int(ask(run, "use_faults")["unrecorded_samples"].sum()) / trained)


def _faulty(answers: Mapping[str, pl.DataFrame], fault: str) -> int:
    return int(answers["row_faults"].filter(pl.col("fault") == fault)["rows"].sum())


def _clock_offsets(clocks: Clocks) -> Iterator[ClockOffset]:
    """Yield the clocks that contradict the order of causes and effects, with their offsets."""
    for each in clocks.hosts:
        bounds_ns = [bound for bound in (each.least_ns, each.most_ns) if bound is not None]
        if not each.is_off or not (each.is_corrected or bounds_ns):
            continue
        offset_ns = each.offset_ns if each.is_corrected else min(bounds_ns, key=abs)
        spread_ns = each.uncertainty_ns if each.is_corrected else None
        yield ClockOffset(
            host=each.host,
            against=each.against,
            offset_s=offset_ns / 1e9,
            uncertainty_s=None if spread_ns is None else spread_ns / 1e9,
            is_corrected=each.is_corrected,
            drift_ratio=each.drift_ratio,
        )


def _clock_uncertainty_s(clocks: Clocks) -> float | None:
    """Return the largest uncertainty between two hosts, whose uncertainties against the reference add up."""
    known = sorted((math.inf if each.uncertainty_ns is None else each.uncertainty_ns / 1e9) for each in clocks.hosts)
    return sum(known[-2:]) if known else None


def contradictions(clocks: Clocks) -> tuple[str, ...]:
    """Return a sentence if no clock offsets explain the times of causes and effects."""
    by = fmt.duration(clocks.contradiction_ns / 1e9)
    said = f"clocks: effects precede their causes on other hosts by up to {by}, whatever the hosts' clocks"
    return (said,) if clocks.contradiction_ns else ()
