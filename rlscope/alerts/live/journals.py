"""Journals that a watch follows, and the rows of new batches of many of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from rlscope_otel.schema import TIMES

from rlscope.trace.impossible_values import lacking_values
from rlscope.trace.journals import Batches, Place

_NEVER_NS: Final = 2**63 - 1


@dataclass(slots=True, eq=False)
class Journal:
    """A journal that is followed."""

    path: Path
    worker_id: str
    size_bytes: int = 0
    """Its size when it was read last."""
    place: Place | None = None
    """The place up to which it was read. None before its head was."""
    stuck_ns: int | None = None
    """Since when there has been something that cannot be read behind that place. None if there is nothing."""
    fault: str | None = None
    """Why it is not followed any more."""


class NewBatches(NamedTuple):
    """New batches of one journal."""

    journal: Journal
    read: Batches
    offset: int
    """Where their positions count from in the journal."""


@dataclass(frozen=True, slots=True, eq=False)
class ReadRows:
    """Rows of a table that were read in one call; one entry a batch, in the order of the rows."""

    table: str
    rows: pa.Table
    """Rows with the format's columns and types."""
    counts: NDArray[np.int64]
    """Rows of each batch."""
    is_whole: NDArray[np.bool_]
    """Whether a batch has a row with every required value. The times of the others mean nothing."""
    first_ns: NDArray[np.int64]
    """The first time in the rows of each batch with every required value."""
    last_ns: NDArray[np.int64]

    def without(self, left_out: NDArray[np.bool_]) -> pa.Table:
        """Return the rows of all other batches."""
        return self.rows.filter(pa.array(np.repeat(~left_out, self.counts))) if left_out.any() else self.rows


def read_rows(found: Sequence[NewBatches], rows: pa.Table, table: str) -> ReadRows:
    """Return rows that were decoded by one call, with the facts about their batches."""
    counts = np.array([batch.rows for each in found for batch in each.read.sealed], np.int64)
    starts = np.cumsum(counts) - counts
    lacks, is_whole = lacking_values(rows, table), counts > 0
    firsts_ns, lasts_ns = (rows[name].fill_null(0).to_numpy() for name in TIMES[table])
    if lacks is not None:
        firsts_ns, lasts_ns = np.where(lacks, _NEVER_NS, firsts_ns), np.where(lacks, -_NEVER_NS, lasts_ns)
        is_whole &= ~np.logical_and.reduceat(lacks, starts)
    firsts_ns, lasts_ns = np.minimum.reduceat(firsts_ns, starts), np.maximum.reduceat(lasts_ns, starts)
    return ReadRows(table, rows, counts, is_whole, firsts_ns, lasts_ns)
