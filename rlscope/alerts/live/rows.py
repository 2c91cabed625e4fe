"""The recent rows of a run in progress, kept for the next buckets and for correcting earlier ones. Bounded by time."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from rlscope_otel.schema import TIMES, arrow_schema

from rlscope.trace.impossible_values import lacking_values
from rlscope.trace.journals import fitted, possible_rows

CORRECTED_NS: Final = 15 * 60_000_000_000
"""Maximum delay of a row that still counts. The rows around it are kept for this long."""
JOINED_NS: Final = 60 * 60_000_000_000
"""Time for which samples are kept for the step that trains on them, and publications for the engines."""
_JOINED: Final = ("samples", "deliveries", "train_steps", "weight_updates", "queue_depths")
_SPANS: Final = ("engine_steps", "activities", "train_steps", "weight_updates")
"""The tables that the ledger is computed from."""
_MOST_CHUNKS: Final = 64
_NEVER_NS: Final = 2**63 - 1
_LACKS: Final = "lack a value that the format requires"
_CANNOT_BE: Final = "have a value that cannot be"


class LiveRows:
    """Rows by table, in the schema of the trace format."""

    def __init__(self) -> None:
        self._tables: dict[str, pa.Table] = {}
        self._added: dict[str, list[pa.Table]] = {}
        """Rows that are not in their table yet, with the format's schema and without rows that lack a value. Joining
        them for each file would copy the table each time."""
        self._left_out = Counter[tuple[str, str]]()
        self._marks = fitted(arrow_schema("engine_steps").empty_table(), "engine_steps")
        """One engine row of each worker: having any decides how its updates are counted."""
        self._marked: set[str] = set()

    @property
    def count(self) -> int:
        """The number of rows in memory."""
        return sum(rows.num_rows for rows in self._joined().values())

    def left_out(self) -> tuple[str, ...]:
        """One sentence for each table and reason for which rows were left out."""
        return tuple(
            f"{table}: {rows:,} rows {fault}; they are left out"
            for (table, fault), rows in self._left_out.items()
            if rows
        )

    def keep(self, table: str, rows: pa.Table) -> pa.Table:
        """Keep rows of the contract's schema; returns those that lack no required value."""
        lacks = lacking_values(rows, table)
        if lacks is not None:
            self._left_out[table, _LACKS] += int(lacks.sum())
            rows = rows.filter(pa.array(~lacks))
        self._added.setdefault(table, []).append(rows)
        return rows

    def prune(self, now_ns: int) -> None:
        """Drop the rows that cannot count in any bucket after now_ns, UTC epoch."""
        for table, rows in self._joined().items():
            kept_ns = JOINED_NS if table in _JOINED else CORRECTED_NS
            self._tables[table] = _from(rows, TIMES[table][1], now_ns - kept_ns)

    def since(self, from_ns: int, until_ns: int = _NEVER_NS) -> tuple[dict[str, pa.Table], int]:
        """The rows needed by buckets from from_ns to until_ns, and the earliest start of those that reach into them."""
        tables = dict(self._joined())
        tables |= _recent(tables, from_ns)
        for table in ("engine_steps", "activities"):
            if table in tables:
                held = _from(tables[table], "end_ns", from_ns)
                tables[table] = held.filter(pa.array(held["start_ns"].to_numpy() < until_ns))
        reaching = [_from(tables[table], "end_ns", from_ns) for table in _SPANS if table in tables]
        starts_ns = [int(rows["start_ns"].to_numpy().min()) for rows in reaching if rows.num_rows]
        if self._marked:
            engines = tables.get("engine_steps", self._marks.slice(0, 0))
            elsewhere = self._marked.difference(engines["worker_id"].unique().to_pylist())
            named = self._marks["worker_id"].to_pylist() if elsewhere else []
            places = [place for place, name in enumerate(named) if name in elsewhere]
            marks = self._marks.take(pa.array(places, pa.int64()))
            tables["engine_steps"] = _in_order(pa.concat_tables([marks, engines]))
        return tables, min([from_ns, *starts_ns])

    def _joined(self) -> dict[str, pa.Table]:
        """The tables, with all that was added."""
        for table, added in self._added.items():
            held = [self._tables[table]] if table in self._tables else []
            possible, left_out = possible_rows(pa.concat_tables(added), table)
            if table == "engine_steps":
                self._mark(possible)
            self._left_out[table, _CANNOT_BE] += left_out
            rows = pa.concat_tables([*held, possible])
            self._tables[table] = rows.combine_chunks() if rows.column(0).num_chunks > _MOST_CHUNKS else rows
        self._added.clear()
        return self._tables

    def _mark(self, rows: pa.Table) -> None:
        workers = rows["worker_id"].combine_chunks().dictionary_encode()
        names = workers.dictionary.to_pylist()
        numbers, firsts = np.unique(workers.indices.to_numpy(), return_index=True)
        new = [place for number, place in zip(numbers, firsts, strict=True) if names[number] not in self._marked]
        if new:
            self._marked.update(names)
            self._marks = pa.concat_tables([self._marks, rows.take(pa.array(new))]).combine_chunks()


def _recent(tables: Mapping[str, pa.Table], from_ns: int) -> dict[str, pa.Table]:
    """Return the rows of the joined tables that buckets from from_ns on need, which are a few of an hour.

    These are deliveries taken since then or trained on by a step that ended since then, their samples, and all rows of
    the weight versions that a worker finished with since then.
    """
    found: dict[str, pa.Table] = {}
    if "deliveries" in tables:
        steps = _from(tables["train_steps"], "end_ns", from_ns)["step"] if "train_steps" in tables else []
        taken = tables["deliveries"]
        is_recent = taken["taken_ns"].to_numpy() >= from_ns
        found["deliveries"] = taken.filter(pa.array(is_recent | _is_among(taken["step"], steps)))
    if "samples" in tables:
        delivered = found["deliveries"]["sample_id"] if "deliveries" in found else []
        samples = tables["samples"]
        found["samples"] = samples.filter(pa.array(_is_among(samples["sample_id"], delivered)))
    if "weight_updates" in tables:
        updates = tables["weight_updates"]
        versions = _from(updates, "end_ns", from_ns)["version"]
        found["weight_updates"] = updates.filter(pa.array(_is_among(updates["version"], versions)))
    return found


def _is_among(values: pa.ChunkedArray, wanted: Sequence[object] | pa.ChunkedArray) -> NDArray[np.bool_]:
    """Return whether each value is wanted. NULL is not."""
    if not len(wanted):
        return np.zeros(len(values), np.bool_)
    known = pc.SetLookupOptions(value_set=cast("pa.ChunkedArray", wanted).drop_null(), skip_nulls=True)
    return pc.call_function("is_in", [values], known).to_numpy()


def _in_order(rows: pa.Table) -> pa.Table:
    """The rows of each worker after each other, by their start: questions about rows in order take half the time."""
    workers = rows["worker_id"].combine_chunks().dictionary_encode()
    return rows.take(pa.array(np.lexsort((rows["start_ns"].to_numpy(), workers.indices.to_numpy()))))


def _from(rows: pa.Table, column: str, from_ns: int) -> pa.Table:
    is_kept = rows[column].to_numpy() >= from_ns
    # Chunk by chunk: to filter an hour of rows as one would copy all of them for the few that are dropped.
    kept: list[pa.RecordBatch] = []
    start = 0
    for batch in rows.to_batches():
        own = is_kept[start : start + batch.num_rows]
        start += batch.num_rows
        if own.any():
            kept.append(batch if own.all() else batch.filter(pa.array(own)))
    return pa.Table.from_batches(kept, rows.schema)
