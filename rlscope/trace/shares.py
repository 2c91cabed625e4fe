"""Shares of a run: which rows each of them holds, and how their answers become the answer of the run.

A share holds the rows of some workers, or the samples of one bucket of hash(sample_id) and their deliveries. Every row
is in exactly one share of either kind, whatever it says: the first share of workers has the rows of those that no other
share names. Nothing is opened here but a table of the answers.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import pyarrow as pa
from duckdb import DuckDBPyConnection

from rlscope.trace.files import StoredFile, TableFiles
from rlscope.trace.questions import SAMPLE, WORKER, Question
from rlscope.trace.usual_times import worker_of

Argument = int | float | str | bool
BUCKETED: Final = ("samples", "deliveries")
"""Tables of which a share of samples holds a bucket."""
WHOLE: Final = ("train_steps", "weight_updates")
"""Tables that a share of samples holds whole, as it does the workers. It holds no others."""
_NOT_BY_WORKER: Final = ("deliveries",)
"""Tables that no question asks of a share of workers. Their times may be by the clock of another worker."""
_AGGREGATES: Final = {"sum": "sum", "min": "min", "max": "max", "all": "bool_and"}
_ORDER: Final = re.compile(r"^ORDER BY (.+)\Z", re.MULTILINE | re.DOTALL)
_QUALIFIER: Final = re.compile(r"\b[a-z_]+\.(?=[a-z_])")


@dataclass(frozen=True, slots=True)
class Share:
    """One of the shares that a run is divided into by worker, or by sample."""

    partition: str
    place: int
    count: int
    workers: tuple[str, ...] = ()
    """Of a share of workers: its own, by their files."""
    elsewhere: tuple[str, ...] = ()
    """Of the first share of workers: those of the others. What names none of them is in this share."""

    @property
    def name(self) -> str:
        """What a message calls it."""
        return f"share {self.place + 1} of {self.count} by {self.partition}"

    def condition(self, table: str) -> str | None:
        """SQL that is true for the rows of a table that it holds; None where it holds all."""
        if self.partition == SAMPLE:
            return f"hash(sample_id) % {self.count} = {self.place}" if table in BUCKETED else None
        if self.place:
            return f"coalesce({_in('worker_id', self.workers)}, false)"
        return f"NOT coalesce({_in('worker_id', self.elsewhere)}, false)" if self.elsewhere else None

    def holds(self, worker_id: str) -> bool:
        """Whether the rows of a worker are in it, if it is a share of workers."""
        return worker_id in self.workers if self.place else worker_id not in self.elsewhere

    def files(self, table: str, files: TableFiles) -> tuple[StoredFile, ...]:
        """The files that may hold rows of it, in their order."""
        if self.partition == SAMPLE:
            return files.files if table in (*BUCKETED, *WHOLE) else ()
        if table in _NOT_BY_WORKER:
            return ()
        own = frozenset(self.workers)
        return tuple(file for file in files.files if self._may_hold(file, own))

    def _may_hold(self, file: StoredFile, own: frozenset[str]) -> bool:
        if file.footer.workers is None:
            return True
        first, last = file.footer.workers
        if first == last:
            return self.holds(first)
        return not self.place or any(first <= worker_id <= last for worker_id in own)


class Split(Protocol):
    """What answers questions in shares of a run."""

    def answers(self, question: Question, arguments: Mapping[str, Argument]) -> Iterator[pa.Table]:
        """The answers of all shares of the question's partition, as they come; at least one.

        Raises UnreadableDataError for a file that breaks, RlscopeError for a process that ended.
        """
        ...


def plan_shares(
    workers: Sequence[Mapping[str, object]], tables: Mapping[str, TableFiles], by_worker: int, by_sample: int
) -> tuple[Share, ...]:
    """Shares of about equally many rows: at most by_worker shares of workers, and by_sample shares of samples."""
    rows = {str(worker["worker_id"]): 0 for worker in workers}
    for files in tables.values():
        for file in files.files:
            owner = worker_of(file)
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
            Share(
                partition=WORKER,
                place=place,
                count=len(groups),
                workers=tuple(sorted(group)),
                elsewhere=() if place else elsewhere,
            )
            for place, group in enumerate(groups)
        ),
        *(Share(SAMPLE, place, by_sample) for place in range(max(1, by_sample))),
    )


def merge_answers(connection: DuckDBPyConnection, question: Question, answers: Iterable[pa.Table]) -> None:
    """Create a table, by the name of the question, of the answers of its shares. Raises duckdb.Error."""
    staged = f"shares_of_{question.name}"
    columns = ", ".join(f"{_quoted(column.name)} {column.type}" for column in question.outputs)
    connection.execute(f"CREATE TABLE {staged} ({columns})")
    try:
        for answer in answers:
            connection.from_arrow(answer).insert_into(staged)
        connection.execute(f"CREATE TABLE {question.name} AS {merged_sql(question, staged)}")
    finally:
        connection.execute(f"DROP TABLE {staged}")


def merged_sql(question: Question, answers: str) -> str:
    """The SELECT that makes the answer of the run of the table that holds the answers of its shares."""
    merge = question.merge or {}
    columns = [
        f"{_AGGREGATES[merge[column.name]]}({_quoted(column.name)})::{column.type} AS {_quoted(column.name)}"
        if column.name in merge
        else _quoted(column.name)
        for column in question.outputs
    ]
    keys = [_quoted(column.name) for column in question.outputs if column.name not in merge]
    grouped = f" GROUP BY {', '.join(keys)}" if merge and keys else ""
    ordered = _ORDER.search(question.sql)
    order = f" ORDER BY {_QUALIFIER.sub('', ordered[1])}" if ordered else ""
    return f"SELECT {', '.join(columns)} FROM {answers}{grouped}{order}"


def _in(column: str, names: Sequence[str]) -> str:
    return f"{column} IN ({', '.join(_literal(name) for name in names)})" if names else "false"


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _quoted(name: str) -> str:
    return f'"{name}"'
