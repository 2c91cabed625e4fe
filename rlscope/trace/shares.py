"""Shares of a run: which rows each of them holds, and how their answers become the answer of the run.

A share holds the rows of some workers, or the samples of one bucket of hash(sample_id) and their deliveries. Every row
is in exactly one share of either kind, whatever it says: the first share of workers has the rows of those that no other
share names. Nothing is opened here but a table of the answers.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple, Protocol

import pyarrow as pa
from duckdb import DuckDBPyConnection

from rlscope import format as fmt
from rlscope.errors import UnreadableDataError
from rlscope.trace.completeness import Completeness, RowGap
from rlscope.trace.files import StoredFile, TableFiles, is_integer
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
_NAMED_WORKERS: Final = 8
"""Workers of a lost share that a sentence names."""


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
    gpu_ns: int = 0
    """GPU time of its workers, by their worker files."""

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


class Lost(NamedTuple):
    """A share that could not be answered, and why."""

    share: Share
    why: str

    @property
    def gap(self) -> str:
        """What is missing from the answers without it."""
        if self.share.partition == SAMPLE:
            missing = f"one of {self.share.count} equal parts of the samples is left out"
        else:
            missing = (
                f"all rows of {_some(self.share.workers)} are left out; "
                f"{fmt.gpu_time(self.share.gpu_ns / 1e9)} of them are unattributed"
            )
        return f"{self.share.name} failed {ATTEMPTS} times ({self.why}): {missing}"


ATTEMPTS: Final = 3
"""How often a share is tried before the run is answered without it."""


class LostShareError(UnreadableDataError):
    """A share failed ATTEMPTS times: the run is to be opened again without it."""

    def __init__(self, lost: Lost) -> None:
        super().__init__(lost.gap)
        self.lost = lost


class Split(Protocol):
    """What answers questions in shares of a run."""

    def answers(self, question: Question, arguments: Mapping[str, Argument]) -> Iterator[pa.Table]:
        """The answers of all shares of the question's partition, as they come; at least one.

        Raises UnreadableDataError for a file that breaks, LostShareError.
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
    gpu_ns = {str(worker["worker_id"]): _gpu_ns(worker) for worker in workers}
    elsewhere = tuple(sorted(worker_id for group in groups[1:] for worker_id in group))
    return (
        *(
            Share(
                partition=WORKER,
                place=place,
                count=len(groups),
                workers=tuple(sorted(group)),
                elsewhere=() if place else elsewhere,
                gpu_ns=sum(gpu_ns.get(worker_id, 0) for worker_id in group),
            )
            for place, group in enumerate(groups)
        ),
        *(Share(SAMPLE, place, by_sample) for place in range(max(1, by_sample))),
    )


def _gpu_ns(worker: Mapping[str, object]) -> int:
    stopped, flushed = worker.get("stopped_ns"), worker.get("last_flush_ns")
    end, start, gpus = stopped if is_integer(stopped) else flushed, worker.get("started_ns"), worker.get("gpu_count")
    if not is_integer(end) or not is_integer(start) or not is_integer(gpus):
        return 0
    return gpus * max(0, end - start)


def rows_left(lost: Sequence[Lost], table: str) -> str | None:
    """SQL that is true for the rows of a table that are in no lost share; None where nothing of it is lost."""
    conditions = [
        each.share.condition(table) or "true" for each in lost if each.share.partition == WORKER or table in BUCKETED
    ]
    return " AND ".join(f"NOT ({condition})" for condition in conditions) or None


def without_lost(found: Completeness, lost: Sequence[Lost], left_out: Mapping[str, int]) -> Completeness:
    """What was found of a run, with the rows of lost shares as missing; left_out: their number by table."""
    gaps = tuple(
        RowGap(
            kind="missing",
            table=table,
            worker_id=_some([worker_id for each in lost for worker_id in each.share.workers]) or "every worker",
            rows=rows,
            gpu_s=sum(each.share.gpu_ns for each in lost) / 1e9 or None,
            detail=f"{rows:,} rows are left out, of {', '.join(each.share.name for each in lost)}",
        )
        for table, rows in left_out.items()
        if rows
    )
    return replace(found, state="incomplete", gaps=(*found.gaps, *gaps), is_verified=False) if gaps else found


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


def _some(workers: Sequence[str]) -> str:
    more = len(workers) - _NAMED_WORKERS
    return ", ".join(workers[:_NAMED_WORKERS]) + (f" and {more:,} more workers" if more > 0 else "")
