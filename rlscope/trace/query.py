"""Runs a question, or a user's ad-hoc SELECT, on an open run, and returns a polars frame.

A question may use the answer to another question, which it lists among its inputs. That answer is kept as a table, so
it is computed once per run.
"""

import warnings
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

import duckdb
import polars as pl
import pyarrow as pa
from duckdb import ColumnExpression, ConstantExpression, DuckDBPyConnection, DuckDBPyRelation, StatementType

from rlscope.errors import LimitError, QueryError, UnreadableDataError
from rlscope.text_out import LONGEST_TEXT, shortened
from rlscope.trace.clocks import CELLS
from rlscope.trace.execution import SqlLimits, interruptible, limited, too_large
from rlscope.trace.questions import Question, arguments_of, find_question, inputs_of, questions
from rlscope.trace.shares import Argument, merge_answers
from rlscope.trace.store import OpenRun, OpenTables, is_small_run

BUCKETS: Final = 240
"""Buckets of a timeline: as many as a report can show."""
_MOST_WORKER_BUCKETS: Final = 60_000
"""Maximum buckets of all workers together: each costs the ledger 5 us, and 1,000 lines show no more than 60 each."""
_FEWEST_BUCKETS: Final = 60
MOST_BUCKETS: Final = 4096
"""Maximum buckets of a whole run if only a short part of it is analyzed."""
_MOST_CELLS: Final = 16
"""Maximum cells per bucket. Most cells contain no edge of a span, so the ledger can count them as a whole."""
_FEW_ROWS: Final = 4
"""Minimum mean engine rows per cell: with fewer, the cells cost more than they save."""
_MOST_HELD_ROWS: Final = 20_000_000
"""Maximum engine rows for percentiles: each takes 16 bytes while they are collected."""
_UNKNOWN_RUN_BUCKET_NS: Final = 1_000_000_000
"""Length of a bucket if no worker file gives the duration of the run."""
_MANY_PIECES: Final = 2_000_000
"""Pieces of overlapping engine rows, cut at the cells, above which cells are as long as buckets."""
_MOST_PIECES: Final = 10_000_000
"""Pieces above which a run is refused if its engine rows also exceed _MOST_DEPTH times the running time."""
_MOST_DEPTH: Final = 16
"""Maximum ratio of the duration of engine rows to the running time of all workers."""
_OUR_BUGS: Final = (duckdb.BinderException, duckdb.CatalogException, duckdb.ParserException)
"""Errors before DuckDB reads a row, which are bugs of the question; later errors are about the rows."""
_PYTHON_TYPES: Final[Mapping[str, type]] = {"BIGINT": int, "BOOLEAN": bool, "DOUBLE": float, "VARCHAR": str}
_CHECK: Final = "EXPLAIN "
"""Prefix that makes DuckDB check a SELECT without running it."""
_SHOWN_SQL: Final = 60
"""Maximum characters of a statement in a message."""
_ONLY_READS: Final = "EXPLAIN FROM query($sql)"
"""Fails for a SELECT whose WITH clause writes: DuckDB allows COPY there, but not inside query()."""
NO_ARGUMENTS: Final[Mapping[str, Argument]] = {}
IDLE_AFTER_NS: Final = 100_000_000
"""Minimum gap between engine rows that counts as idle: in shorter gaps the host may prepare the next pass."""
PAGE_ROWS: Final = 20_000
"""Rows of a page: a few megabytes of Python objects."""
_LIMITS: Final = SqlLimits()
_SMALL_ANSWER_BYTES: Final = 10**6
"""Maximum size of an answer that is cached."""
_ROWS_OF_A_BATCH: Final = 100_000


@dataclass(frozen=True, slots=True)
class Grid:
    """Common arguments of questions over time. They divide a run into buckets, and buckets into cells."""

    origin_ns: int
    end_ns: int
    from_ns: int
    """Start of the period of interest."""
    to_ns: int
    bucket_ns: int
    cell_ns: int
    cells_per_bucket: int
    rows_disjoint: bool
    bins: int = 40
    most_groups: int = 2000
    most_marks: int = 3000
    """Maximum marks in one view of the workers over time."""
    most_lanes: int = 64
    worst_workers: int = 16
    worst_ns: int = 60 * 10**9
    most_columns: int = 120
    """Maximum columns of a chart over time with a mark per column and row: under 5,000 marks with `bins` rows."""
    most_versions: int = 400
    idle_after_ns: int = IDLE_AFTER_NS
    gpu_lag_ns: int = 10**9
    """NVML's longest period between two of its own readings; a worker may record the same reading several times."""
    cells: int = CELLS
    """Number of cells in which clocks are compared."""
    one_row_in: int = 1
    """Percentiles hold all their values in memory, so they use one engine row in this many."""
    beside_origin_ns: int = 0
    beside_cell_ns: int = 0
    """Cell length of a second grid for the same run, which shares one read of the engine rows; 0 if there is none."""


class Cells(NamedTuple):
    """Origin and length of the cells of a grid."""

    origin_ns: int
    cell_ns: int


NO_CELLS: Final = Cells(0, 0)


def make_grid(run: OpenRun, from_ns: int, to_ns: int, beside: Cells = NO_CELLS) -> Grid:
    """Make a grid over the run in which the period [from_ns, to_ns) is a whole number of buckets, to a microsecond.

    The run has about as many buckets as `bucket_count` says; a bucket is no longer than the period, but at least
    1 / MOST_BUCKETS of the run. beside: the cells of a second grid for the same run.
    """
    extents = ask(run, "worker_extents")
    start_ns, end_ns = min(extents["start_ns"], default=0), max(extents["end_ns"], default=0)
    stretch_ns = max(to_ns - from_ns, (end_ns - start_ns) // MOST_BUCKETS, 1)
    buckets = max(1, round(stretch_ns * bucket_count(len(extents)) / max(1, end_ns - start_ns)))
    # Use a multiple of _MOST_CELLS, so that the buckets do not depend on the number of cells.
    bucket_ns = _MOST_CELLS * max(1, -(-stretch_ns // (buckets * _MOST_CELLS)))
    if extents.is_empty():
        bucket_ns = _UNKNOWN_RUN_BUCKET_NS
    order = ask(run, "engine_row_order").row(0, named=True)
    cells = cells_per_bucket(run.row_counts.get("engine_steps", 0), len(extents) * (end_ns - start_ns) / bucket_ns)
    if not order["rows_disjoint"] and order["row_ns"] > _MANY_PIECES * (bucket_ns // _MOST_CELLS):
        _refuse_deep_rows(run, order["row_ns"], bucket_ns, extents)
        cells = 1
    return Grid(
        origin_ns=from_ns - max(0, -(-(from_ns - start_ns) // bucket_ns)) * bucket_ns,
        end_ns=end_ns,
        from_ns=from_ns,
        to_ns=to_ns,
        bucket_ns=bucket_ns,
        cell_ns=bucket_ns // cells,
        cells_per_bucket=cells,
        rows_disjoint=bool(order["rows_disjoint"]),
        one_row_in=max(1, -(-run.row_counts.get("engine_steps", 0) // _MOST_HELD_ROWS)),
        beside_origin_ns=beside.origin_ns,
        beside_cell_ns=beside.cell_ns,
    )


def bucket_count(workers: int) -> int:
    """Return the number of buckets of a whole run: BUCKETS, fewer with many workers."""
    return min(BUCKETS, max(_FEWEST_BUCKETS, _MOST_WORKER_BUCKETS // max(1, workers)))


def cells_per_bucket(engine_rows: int, buckets: float) -> int:
    """Return the number of cells per bucket: the largest power of 2 that leaves each cell a few engine rows.

    A cell costs as much as several rows: with 1,000 workers, 16 cells per bucket take 22 s and one takes 2.3 s. Answers
    by bucket are equal up to rounding: the busy share of a row is rounded to a nanosecond in each cell that a span of
    its worker cuts. buckets: summed over all workers.
    """
    cells = _MOST_CELLS
    while cells > 1 and engine_rows < _FEW_ROWS * buckets * cells:
        cells //= 2
    return cells


def _refuse_deep_rows(run: OpenRun, row_ns: float, bucket_ns: int, extents: pl.DataFrame) -> None:
    """Raise LimitError if engine rows overlap so much that the ledger would not finish."""
    ran_ns = float((extents["end_ns"] - extents["start_ns"]).sum())
    if row_ns > _MOST_PIECES * bucket_ns and row_ns > _MOST_DEPTH * ran_ns:
        raise LimitError.of(
            run.folder / "engine_steps",
            found=f"engine rows that add up to {row_ns / max(1.0, ran_ns):,.0f} times the running time of all workers",
            expected=f"engine rows that overlap at most {_MOST_DEPTH} at a time",
            next_step="Give each engine its own worker id, and record each pass once.",
        )


def standard_arguments(run: OpenRun) -> dict[str, Argument]:
    """Return the default arguments of every question: the period is the whole run."""
    extents = ask(run, "worker_extents")
    return asdict(make_grid(run, min(extents["start_ns"], default=0), max(extents["end_ns"], default=0)))


def ask(run: OpenRun, name: str, arguments: Mapping[str, Argument] = NO_ARGUMENTS) -> pl.DataFrame:
    """Answer a question in queries/, with the columns of its header. Arguments that it does not have are ignored.

    Raises QueryError for an unknown question or a missing argument, LimitError if memory or temporary disk space runs
    out, and UnreadableDataError if a file cannot be read.
    """
    question, given = find_question(name), with_both_grids(arguments)
    asked = name, frozenset((arg, type(value), value) for arg, value in _given(question, given).items())
    if asked not in run.given_answers:
        with _named_errors(run.folder):
            answer = interruptible(run.connection, lambda: _answered(run, question, given))
        if answer.estimated_size() > _SMALL_ANSWER_BYTES:
            return answer
        run.given_answers[asked] = answer
    return run.given_answers[asked].clone()


def shorten_texts(answer: pl.DataFrame) -> pl.DataFrame:
    """Return an answer with its long texts shortened: a reason or an id may be a whole prompt."""
    texts = [column.name for column in answer if column.dtype == pl.String]
    long = [name for name in texts if (answer[name].str.len_chars().max() or 0) > LONGEST_TEXT]  # type: ignore[operator]
    return answer.with_columns(pl.col(long).map_elements(shortened, return_dtype=pl.String)) if long else answer


def with_both_grids(arguments: Mapping[str, Argument]) -> Mapping[str, Argument]:
    """Return the arguments plus those of questions that read the rows once for two grids: the current one and `beside`.

    The added arguments are the same whichever of the two grids is the current one, so the answer can be reused. Buckets
    that are not a whole number of cells form a grid of their own.
    """
    lengths = [length for name in ("cell_ns", "bucket_ns") if isinstance(length := arguments.get(name), int)]
    if "origin_ns" not in arguments or not lengths or "first_cell_ns" in arguments:
        return arguments
    own = lengths if lengths[-1] % (lengths[0] or 1) else lengths[:1]
    grids: list[tuple[Argument, Argument]] = [(arguments["origin_ns"], length) for length in own]
    if len(grids) == 1 and arguments.get("beside_cell_ns"):
        grids.append((arguments["beside_origin_ns"], arguments["beside_cell_ns"]))
    first, second = min(grids), max(grids)
    return {
        **arguments,
        "first_origin_ns": first[0],
        "first_cell_ns": first[1],
        "second_origin_ns": second[0],
        "second_cell_ns": second[1],
    }


def ask_share(share: OpenTables, name: str, arguments: Mapping[str, Argument]) -> pa.Table:
    """Return a share's answer to a question of its partition, for `merge_answers`. Raises the errors of `ask`."""
    question = find_question(name)
    with _named_errors(share.folder):
        keep_inputs(share, question, arguments)
        return _rows(share, question, arguments).to_arrow_table()


@contextmanager
def _named_errors(folder: Path) -> Generator[None]:
    try:
        yield
    except _OUR_BUGS:
        raise
    except duckdb.OutOfMemoryException as error:
        raise LimitError.of(
            folder,
            found=f"rows that need more memory or temporary disk space than the limits: {error}",
            expected="a run whose queries fit within them",
            next_step="Remove the impossible times and counts that data quality lists; without them it fits.",
        ) from error
    except duckdb.Error as error:
        raise UnreadableDataError.while_reading(folder, error) from error


def ask_in_pages(
    run: OpenRun, name: str, arguments: Mapping[str, Argument] = NO_ARGUMENTS, page_rows: int = PAGE_ROWS
) -> Iterator[pl.DataFrame]:
    """Yield the answer to a question in order, a page at a time; other questions can be asked in between.

    DuckDB keeps the whole answer and spills what does not fit in memory. Raises the errors of `ask`.
    """
    question, arguments = find_question(name), with_both_grids(arguments)
    with _named_errors(run.folder):
        _keep(run, question, arguments)
        answer = run.connection.table(name)
        row = ColumnExpression("rowid")
        for first in range(0, len(answer), page_rows):
            yield answer.filter(row.between(ConstantExpression(first), ConstantExpression(first + page_rows - 1))).pl()


def stored_rows(run: OpenRun, table: str) -> Iterator[dict[str, Any]]:
    """Yield the rows of a table of the trace format as they are stored. Raises UnreadableDataError."""
    with _named_errors(run.folder):
        for batch in run.connection.table(table).to_arrow_reader(_ROWS_OF_A_BATCH):
            yield from batch.to_pylist()


def _answered(run: OpenRun, question: Question, arguments: Mapping[str, Argument]) -> pl.DataFrame:
    # Others are likely to be asked next with the same arguments, so an answer that they depend on is kept at once.
    if question.name in _input_names() or (run.split is not None and question.merge is not None):
        _keep(run, question, arguments)
    else:
        keep_inputs(run, question, arguments)
        if is_small_run(run.row_counts):
            return _planned_once(run, question, arguments)
    return _rows(run, question, arguments).pl()


def _planned_once(run: OpenRun, question: Question, arguments: Mapping[str, Argument]) -> pl.DataFrame:
    """Return the answer without a relation, which DuckDB would plan a second time to know its columns."""
    result = run.connection.execute(question.sql, _needed(question, arguments))
    with warnings.catch_warnings():
        # DuckDB recommends a relation, because this copies the rows once more.
        warnings.simplefilter("ignore", UserWarning)
        return pl.DataFrame(result.to_arrow_table())


def _rows(opened: OpenTables, question: Question, arguments: Mapping[str, Argument]) -> DuckDBPyRelation:
    if opened.kept_answers.get(question.name) == _given(question, arguments):
        return opened.connection.table(question.name)
    return opened.connection.sql(question.sql, params=_needed(question, arguments))


def keep_inputs(opened: OpenTables, question: Question, arguments: Mapping[str, Argument]) -> None:
    """Answer the questions that this one depends on, and keep each answer as a table named after its question.

    A kept answer is reused only for the same arguments.
    """
    for needed in inputs_of(question):
        _keep(opened, needed, arguments)


def _keep(opened: OpenTables, question: Question, arguments: Mapping[str, Argument]) -> None:
    """Answer a question and keep the answer as a table named after it, unless it is already kept."""
    connection, kept, given = opened.connection, opened.kept_answers, _given(question, arguments)
    if kept.get(question.name) == given:
        return
    split = opened.split if question.merge is not None else None
    if split is None:
        keep_inputs(opened, question, arguments)
    if kept.pop(question.name, None) is not None:
        connection.execute(f"DROP TABLE {question.name}")  # a file's name; identifiers cannot be parameters
    needed = _needed(question, arguments)
    if split is not None:
        merge_answers(connection, question, split.answers(question, arguments))
    else:
        # A relation would be planned twice, and on short runs planning is most of what an answer costs.
        connection.execute(f"CREATE TABLE {question.name} AS\n{question.sql}", needed)
    kept[question.name] = given


def ask_own(run: OpenRun, sql: str, limits: SqlLimits = _LIMITS) -> pl.DataFrame:
    """Answer a user's SELECT on a connection that cannot open files.

    Raises QueryError if it is not a SELECT, DuckDB rejects it, or it exceeds its limits.
    """
    try:
        sql.encode("utf-8")
        connection = run.locked.open(limits)
        return limited(connection, lambda: _own_answer(connection, sql, limits), limits)
    except duckdb.OutOfMemoryException as error:
        raise too_large(limits) from error
    except (duckdb.Error, pa.ArrowException, OSError, UnicodeError, pl.exceptions.PolarsError) as error:
        raise QueryError(f"SQL error: {error}") from error


def _own_answer(connection: DuckDBPyConnection, sql: str, limits: SqlLimits) -> pl.DataFrame:
    kinds = [statement.type for statement in connection.extract_statements(sql)]
    if kinds != [StatementType.SELECT]:
        raise QueryError.of(
            f"ad-hoc SQL {_shortened(sql)!r}",
            found=", ".join(kind.name for kind in kinds) or "nothing",
            expected="one SELECT",
            next_step="`rlscope queries` lists the built-in queries; their files show the tables.",
        )
    try:
        connection.execute(_CHECK + sql)
        connection.execute(_ONLY_READS, {"sql": sql})
    except duckdb.Error as error:
        raise QueryError(f"SQL error: {_as_typed(str(error))}") from error
    reader = connection.sql(sql).to_arrow_reader(_ROWS_OF_A_BATCH)
    batches: list[pa.RecordBatch] = []
    held_bytes = 0
    with reader:
        for batch in reader:
            batches.append(batch)
            held_bytes += batch.nbytes
            if held_bytes > limits.memory_bytes:
                raise too_large(limits)
    return pl.DataFrame(pa.Table.from_batches(batches, reader.schema))


def _as_typed(message: str) -> str:
    """Return DuckDB's message with the quoted line as the user typed it."""
    before, quoted, after = message.partition(f"LINE 1: {_CHECK}")
    line, newline, mark = after.partition("\n")
    return f"{before}LINE 1: {line}{newline}{mark[len(_CHECK) :]}" if quoted else message


def _shortened(sql: str) -> str:
    line = " ".join(sql.split())
    return line if len(line) <= _SHOWN_SQL else f"{line[:_SHOWN_SQL]}..."


@cache
def _input_names() -> frozenset[str]:
    """Return the names of the questions that others depend on."""
    return frozenset(needed.name for question in questions().values() for needed in inputs_of(question))


def _given(question: Question, arguments: Mapping[str, Argument]) -> dict[str, object]:
    """Return the arguments that an answer depends on."""
    return {name: arguments[name] for name in arguments_of(question.name) if name in arguments}


def _needed(question: Question, arguments: Mapping[str, Argument]) -> dict[str, Argument] | None:
    names = [arg.name for arg in question.args]
    missing = [name for name in names if name not in arguments]
    if missing:
        raise QueryError.of(
            f"query {question.name!r}",
            found="no value for argument " + ", ".join(missing),
            expected="arguments " + ", ".join(names),
            next_step="Its header in queries/ describes each argument.",
        )
    for arg in question.args:
        if type(arguments[arg.name]) is not _PYTHON_TYPES[arg.type]:
            raise QueryError.of(
                f"query {question.name!r}",
                found=f"argument {arg.name} = {arguments[arg.name]!r}",
                expected=f"a {arg.type}: {arg.meaning}",
                next_step="Pass it with --arg NAME=VALUE.",
            )
    return {name: arguments[name] for name in names} or None
