"""Divides a run into shares, and merges their answers into the answer of the run.

A share holds the rows of some workers, or the samples in one bucket of hash(sample_id) with their deliveries. Every row
is in exactly one share of each kind: the first share of workers also has the rows of workers that no share names.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import pyarrow as pa
from duckdb import DuckDBPyConnection

from rlscope.trace.files import StoredFile, TableFiles
from rlscope.trace.questions import AGGREGATES, SAMPLE, WORKER, Question
from rlscope.trace.sql import literals, quoted
from rlscope.trace.worker_files import Worker

Argument = int | float | str | bool
BUCKETED: Final = ("samples", "deliveries")
"""Tables that a share of samples holds one bucket of."""
WHOLE: Final = ("train_steps", "weight_updates")
"""Tables that a share of samples holds in full, like the workers. It holds no other tables."""
_NOT_BY_WORKER: Final = ("deliveries",)
"""Tables that no question reads in a share of workers: their times may be by the clock of another worker."""
_ORDER: Final = re.compile(r"^ORDER BY (.+)\Z", re.MULTILINE | re.DOTALL)
_QUALIFIER: Final = re.compile(r"\b[a-z_]+\.(?=[a-z_])")


@dataclass(frozen=True, slots=True)
class Partition:
    """One share of a run, by worker or by sample."""

    partition: str
    place: int
    count: int
    workers: tuple[str, ...] = ()
    """Workers of a share of workers."""
    elsewhere: tuple[str, ...] = ()
    """Workers of all other shares, for the first share of workers, which holds the rows of every other worker."""

    @property
    def name(self) -> str:
        """Name of the share in messages."""
        return f"share {self.place + 1} of {self.count} by {self.partition}"

    def condition(self, table: str) -> str | None:
        """Return SQL that selects the share's rows of a table; None if it holds all rows."""
        if self.partition == SAMPLE:
            return f"hash(sample_id) % {self.count} = {self.place}" if table in BUCKETED else None
        if self.place:
            return f"coalesce(worker_id IN ({literals(self.workers)}), false)"
        return f"NOT coalesce(worker_id IN ({literals(self.elsewhere)}), false)" if self.elsewhere else None

    def holds(self, worker_id: str) -> bool:
        """Return whether a share of workers holds the rows of a worker."""
        return worker_id in self.workers if self.place else worker_id not in self.elsewhere

    def files(self, table: str, files: TableFiles) -> tuple[StoredFile, ...]:
        """Return the files that may contain rows of the share, in order."""
        if self.partition == SAMPLE:
            return files.files if table in (*BUCKETED, *WHOLE) else ()
        if table in _NOT_BY_WORKER:
            return ()
        stamps = ((file, file.footer.stamp) for file in files.files)
        return tuple(file for file, stamp in stamps if stamp is None or self.holds(stamp.worker_id))


class PartitionedRun(Protocol):
    """Interface for answering questions in shares of a run."""

    def answers(self, question: Question, arguments: Mapping[str, Argument]) -> Iterator[pa.Table]:
        """Yield the answers of all shares of the question's partition, as they arrive; at least one.

        Raises UnreadableDataError if a file cannot be read, and RlscopeError if a process ended.
        """
        ...


def plan_shares(
    workers: Sequence[Worker], tables: Mapping[str, TableFiles], by_worker: int, by_sample: int
) -> tuple[Partition, ...]:
    """Return shares with about equal numbers of rows: at most by_worker shares of workers, and by_sample of samples."""
    rows = {worker.worker_id: 0 for worker in workers}
    for files in tables.values():
        for file in files.files:
            owner = file.owner.worker_id
            rows[owner] = rows.get(owner, 0) + file.footer.rows
    groups: list[list[str]] = [[] for _ in range(max(1, min(by_worker, len(rows))))]
    filled = [0] * len(groups)
    for worker_id in sorted(rows, key=lambda each: (-rows[each], each)):
        place = min(range(len(groups)), key=lambda each: (filled[each], len(groups[each]), each))
        groups[place].append(worker_id)
        filled[place] += rows[worker_id]
    elsewhere = tuple(sorted(worker_id for group in groups[1:] for worker_id in group))
    return (
        *(
            Partition(
                partition=WORKER,
                place=place,
                count=len(groups),
                workers=tuple(sorted(group)),
                elsewhere=() if place else elsewhere,
            )
            for place, group in enumerate(groups)
        ),
        *(Partition(SAMPLE, place, by_sample) for place in range(max(1, by_sample))),
    )


def merge_answers(connection: DuckDBPyConnection, question: Question, answers: Iterable[pa.Table]) -> None:
    """Merge the answers of shares into a table named after the question. Raises duckdb.Error."""
    staged = f"shares_of_{question.name}"
    columns = ", ".join(f"{quoted(column.name)} {column.type}" for column in question.outputs)
    connection.execute(f"CREATE TABLE {staged} ({columns})")
    try:
        for answer in answers:
            connection.from_arrow(answer).insert_into(staged)
        connection.execute(f"CREATE TABLE {question.name} AS {merged_sql(question, staged)}")
    finally:
        connection.execute(f"DROP TABLE {staged}")


def merged_sql(question: Question, answers: str) -> str:
    """Return the SELECT that computes the run's answer. answers: the table with the answers of its shares."""
    merge = question.merge or {}
    columns = [
        f"{AGGREGATES[merge[column.name]]}({quoted(column.name)})::{column.type} AS {quoted(column.name)}"
        if column.name in merge
        else quoted(column.name)
        for column in question.outputs
    ]
    keys = [quoted(column.name) for column in question.outputs if column.name not in merge]
    grouped = f" GROUP BY {', '.join(keys)}" if merge and keys else ""
    ordered = _ORDER.search(question.sql)
    order = f" ORDER BY {_QUALIFIER.sub('', ordered[1])}" if ordered else ""
    return f"SELECT {', '.join(columns)} FROM {answers}{grouped}{order}"
