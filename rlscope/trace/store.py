"""Opens a run folder as one DuckDB connection with the tables of the contract, and lists the files that were left out.

The tables are views over the Parquet files that were in the folder when it was opened, so a run can be analyzed while
it is still being written; small tables are read into memory once. `workers` has one row per worker file.
"""

import shutil
import tempfile
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

import duckdb
import polars as pl
import pyarrow as pa
from duckdb import ColumnExpression, ConstantExpression, DuckDBPyConnection, DuckDBPyRelation
from rlscope_otel.schema import TABLES, arrow_schema

from rlscope.errors import UnreadableDataError
from rlscope.trace import execution
from rlscope.trace.clock_offsets import Clocks
from rlscope.trace.clocks import ONE_CLOCK, RECORDED_TIMES, FoundClocks, correct_tables, estimate_run_clocks
from rlscope.trace.completeness import NOT_KNOWN, Completeness, FileCheck
from rlscope.trace.config import RunConfig, read_config
from rlscope.trace.files import SkippedFile, StoredFile, TableFiles, list_table, table_of
from rlscope.trace.imported import Imported
from rlscope.trace.journals import JournalRows
from rlscope.trace.locked import LockedConnection
from rlscope.trace.manifest import RunManifest, read_manifest
from rlscope.trace.questions import OPENED, SAMPLE, find_question, macros_sql
from rlscope.trace.row_checks import check_rows
from rlscope.trace.sessions import Sessions, keep_sessions_apart
from rlscope.trace.shares import BUCKETED, Partition, PartitionedRun, merge_answers
from rlscope.trace.sql import literals
from rlscope.trace.usual_times import Window, usual_creation, usual_window, with_usual_times
from rlscope.trace.worker_files import Worker, dropped_rows, identity_gaps, read_workers, workers_table

_Read = TypeVar("_Read")

KeptAnswers = dict[str, dict[str, object]]
"""Arguments of each question whose answer a connection holds as a table, by the name of the question and the table."""
MEMORY_LIMIT: Final = "1200MB"
"""Memory that DuckDB may use before it spills, so that the whole process stays under 2 GB."""
MANY_ROWS: Final = 150_000_000
"""Rows of a run above which DuckDB may use MANY_ROWS_MEMORY: otherwise cells spill row by row and fill the disk."""
MANY_ROWS_MEMORY: Final = "50%"
"""Partition of the memory of the machine or its container."""
LEAST_SPILL_BYTES: Final = 2 * 10**9
SPILL_RATIO: Final = 40
"""Maximum size of temporary files as a multiple of the stored bytes: rows unpack to several times their stored size."""
FREE_RATIO: Final = 0.9
"""Partition of the free disk space that temporary files may use."""
SMALL_ROWS: Final = 100_000
"""Maximum rows of a small table, which is kept in memory instead of being read from its files by each question."""
SMALL_BYTES: Final = 4 * 10**6
"""Maximum bytes on disk of a small table."""
MANY_FILES: Final = 200
"""Minimum number of short files for a table to be kept in memory at any size: each question would reopen them all."""
SHORT_FILE_ROWS: Final = 5_000
"""Maximum mean rows of short files. Opening a file costs each question 0.1 to 0.3 ms; keeping its rows costs 0.2 ms per
thousand, once. About nine questions read the engine rows."""
_FILES_AT_ONCE: Final = 5_000
"""Short files per statement: more take more memory and no less time."""
_ROWS_AT_ONCE: Final = 200_000
"""Minimum rows of journals per statement."""
_GATHERED: Final = "gathered_"
"""Prefix of the table that holds a table's rows until the table is created."""


@dataclass(frozen=True, slots=True)
class OpenTables:
    """The open tables of a run or of a share, and the answers that are held as tables beside them."""

    folder: Path
    connection: DuckDBPyConnection
    kept_answers: KeptAnswers = field(default_factory=lambda: {name: {} for name in OPENED})
    split: PartitionedRun | None = None
    """Answers questions in shares of the run; None if this connection answers them all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenRun(OpenTables):
    """An open run, and all facts about it that are not in tables."""

    run_id: str
    created_ns: int | None
    config: RunConfig
    locked: LockedConnection
    """Connection for a user's SQL."""
    row_counts: dict[str, int]
    """Number of stored rows, by table."""
    dropped_rows: dict[str, int]
    """Number of rows that capture reports as dropped, by table."""
    skipped_files: tuple[SkippedFile, ...]
    gaps: tuple[str, ...]
    settings: Mapping[str, object] = field(default_factory=dict[str, object])
    """The raw config, with the entries that `config` leaves out."""
    given_answers: dict[object, pl.DataFrame] = field(default_factory=dict[object, pl.DataFrame])
    """Cache of small answers, by question and arguments."""
    imported: Imported | None = None
    """Origin of an imported run; None if hooks recorded it."""
    completeness: Completeness = NOT_KNOWN
    """Whether every row that the workers wrote was read."""
    clocks: Clocks = ONE_CLOCK
    """Differences between the hosts' clocks, and the hosts whose times are corrected in the tables."""


@dataclass(frozen=True, slots=True)
class StoredRun:
    """Facts about a run that are known before its rows are read; a share can be opened from them on any node."""

    folder: Path
    workers: Sequence[Worker]
    tables: Mapping[str, TableFiles]
    window: Window | None
    unsure: frozenset[str]
    """Tables that may contain duplicate rows."""
    found: FoundClocks = RECORDED_TIMES


class Partitioner:
    """The place where the shares of a run are answered."""

    def __call__(self, stored: StoredRun) -> AbstractContextManager[PartitionedRun]:
        """Start answering in shares of a run; this ends with the block."""
        raise NotImplementedError

    def connected(self) -> AbstractContextManager[None]:
        """Return a block that must enclose all use of this object."""
        return nullcontext()


@contextmanager
def open_run(folder: Path, *, read_all: bool = False, divide: Partitioner | None = None) -> Generator[OpenRun]:
    """Open a run folder; the connection closes with the block.

    read_all: whether to read every file in full first, so that files with inner damage are skipped too.
    divide: answers questions in shares of the run; None if this process answers alone.

    Raises RunFolderError if the folder is not a run, or its format version is unknown.
    """
    folder = folder.resolve()
    given = _read_files(folder, read_all)
    tables = given.stored.tables
    with _connected(folder, _stored_bytes(tables), sum(files.rows for files in tables.values())) as opened:
        connection, scratch = opened
        _suit_size(connection, {table: files.rows for table, files in tables.items()})
        rows = _create_tables(connection, scratch / "run", given.stored, given.journals)
        sessions, manifest, counts, found = _last_session(connection, given, rows)
        stored = replace(given.stored, workers=sessions.workers, found=found)
        # A share of workers cannot detect a sample that another worker stored too, nor an id that was reused there.
        is_divided = divide is not None and "samples" not in rows.distinct and not sessions.replaced
        with divide(stored) if divide is not None and is_divided else nullcontext() as split:
            _create_macros(connection, folder, split)
            _lock_down(connection, scratch, folder)
            is_plain = {table for table, files in tables.items() if files.is_plain and not rows.gaps[table]}
            is_plain -= set(sessions.replaced) | {table for table, files in tables.items() if files.journals}
            as_stored = {table: tables[table].paths for table in is_plain if not found.clocks.corrected}
            with closing(LockedConnection(connection, as_stored)) as locked:
                yield OpenRun(
                    folder=folder,
                    run_id=manifest.run_id,
                    created_ns=manifest.created_ns,
                    config=read_config(manifest.config)[0],
                    connection=connection,
                    locked=locked,
                    row_counts=counts,
                    dropped_rows=dropped_rows(sessions.workers),
                    skipped_files=given.skipped,
                    gaps=(*sessions.gaps, *given.gaps, *chain(*rows.gaps.values())),
                    settings=manifest.config,
                    completeness=given.completeness,
                    imported=manifest.imported,
                    clocks=found.clocks,
                    split=split,
                )


def _last_session(
    connection: DuckDBPyConnection, given: "_Given", rows: "_Rows"
) -> tuple[Sessions, RunManifest, dict[str, int], FoundClocks]:
    """Leave the rows and the settings of the last recording, and correct the times in the tables."""
    manifest, counts = given.manifest, rows.counts
    with _reading(given.stored.folder):
        sessions = keep_sessions_apart(connection, given.stored.workers)
        connection.from_arrow(workers_table(sessions.workers)).create_view("workers")
        # The importer may have constructed the times of an imported run, so they prove nothing about clocks.
        found = estimate_run_clocks(connection, sessions.workers if manifest.imported is None else ())
        if sessions.settings is not None:
            manifest = replace(manifest, config={**manifest.config, **sessions.settings})
            counts = {table: len(connection.table(table)) for table in TABLES}
        correct_tables(connection, sessions.workers, found)
    return sessions, manifest, counts, found


def read_run(
    folder: Path | str,
    use: Callable[[OpenRun], _Read],
    progress: Callable[[str], None] | None = None,
    divide: Partitioner | None = None,
) -> _Read:
    """Open a run and return `use(run)`. If a file is damaged, read all files first and leave the damaged ones out."""
    read_all = False
    while True:
        connected = nullcontext() if divide is None else divide.connected()
        try:
            with connected, open_run(Path(folder), read_all=read_all, divide=divide) as run:
                return use(run)
        except UnreadableDataError:
            if read_all:
                raise
            read_all = True
            if progress is not None:
                progress("a file is damaged: checking every file")


@contextmanager
def open_share(stored: StoredRun, share: Partition) -> Generator[OpenTables]:
    """Open one share of a run, on one thread; the connection closes with the block.

    Raises UnreadableDataError if a file cannot be read.
    """
    folder = stored.folder
    tables = {table: table_of(share.files(table, files)) for table, files in stored.tables.items()}
    own = [each for each in stored.workers if share.partition == SAMPLE or share.holds(each.worker_id)]
    with _connected(folder, _stored_bytes(tables)) as (connection, scratch):
        connection.execute("SET threads = 1")
        _create_tables(connection, scratch / "run", replace(stored, tables=tables), JournalRows(), share)
        connection.from_arrow(workers_table(own)).create_view("workers")
        with _reading(folder):
            correct_tables(connection, stored.workers, stored.found)
        _create_macros(connection, folder)
        _lock_down(connection, scratch, folder)
        yield OpenTables(folder, connection)


class _Given(NamedTuple):
    """Facts about a run folder that are known before any row is read."""

    manifest: RunManifest
    stored: StoredRun
    skipped: tuple[SkippedFile, ...]
    gaps: tuple[str, ...]
    completeness: Completeness
    journals: JournalRows


def _read_files(folder: Path, read_all: bool) -> _Given:
    """Read run.json, the worker files and the footers, and compare them with each other. read_all: as in `open_run`."""
    manifest = read_manifest(folder)
    _, gaps = read_config(manifest.config)
    workers, skipped = read_workers(folder)
    tables: dict[str, TableFiles] = {}
    journals, check = JournalRows(), FileCheck(folder, manifest.run_id, workers)
    for table in TABLES:
        files, unreadable = list_table(folder, table, journals, read_all=read_all)
        tables[table] = check.check(table, files)
        skipped.extend(unreadable)
    window = usual_window(tables, workers)
    workers, time_gaps = with_usual_times(workers, tables, window)
    manifest, created_gaps = usual_creation(manifest, window)
    return _Given(
        manifest=manifest,
        stored=StoredRun(folder, workers, tables, window, frozenset(check.unsure)),
        skipped=(*skipped, *check.skipped),
        gaps=(*gaps, *time_gaps, *created_gaps, *identity_gaps(workers)),
        completeness=check.completeness(),
        journals=journals,
    )


@contextmanager
def open_rows(
    folder: Path, manifest: RunManifest, workers: Sequence[Worker], rows: Mapping[str, pa.Table]
) -> Generator[OpenRun]:
    """Open rows in memory as if they were the whole run; a missing table is empty. No file of the folder is read.

    Times are taken as they were written. rows: tables in the contract's schema.
    """
    config, _ = read_config(manifest.config)
    with _connected(folder, sum(held.nbytes for held in rows.values())) as (connection, scratch):
        # A watch runs beside training: using little CPU matters more than speed.
        connection.execute("SET threads = 1")
        for table in TABLES:
            held = rows.get(table, pa.Table.from_batches([], arrow_schema(table)))
            connection.from_arrow(held).create_view(table)
        connection.from_arrow(workers_table(workers)).create_view("workers")
        _create_macros(connection, folder)
        _suit_size(connection, {table: held.num_rows for table, held in rows.items()})
        _lock_down(connection, scratch, folder)
        with closing(LockedConnection(connection, {})) as locked:
            yield OpenRun(
                folder=folder,
                run_id=manifest.run_id,
                created_ns=manifest.created_ns,
                config=config,
                connection=connection,
                locked=locked,
                row_counts=dict.fromkeys(TABLES, 0) | {table: held.num_rows for table, held in rows.items()},
                dropped_rows=dropped_rows(workers),
                skipped_files=(),
                gaps=(),
            )


@contextmanager
def _reading(folder: Path) -> Generator[None]:
    """Raise UnreadableDataError if DuckDB cannot read a file of the run."""
    try:
        yield
    except duckdb.Error as error:
        raise UnreadableDataError.while_reading(folder, error) from error


@contextmanager
def _connected(folder: Path, stored_bytes: int, rows: int = 0) -> Generator[tuple[DuckDBPyConnection, Path]]:
    """Yield a connection and its scratch folder; both are removed at the end of the block.

    It reads the run through a link in that folder, whose path contains no wildcards for DuckDB.
    """
    with tempfile.TemporaryDirectory(prefix="rlscope-", ignore_cleanup_errors=True) as name:
        scratch = Path(name)
        (scratch / "run").symlink_to(folder, target_is_directory=True)
        free_bytes = int(FREE_RATIO * shutil.disk_usage(scratch).free)
        spill_bytes = min(free_bytes, max(LEAST_SPILL_BYTES, SPILL_RATIO * stored_bytes))
        memory = MANY_ROWS_MEMORY if rows > MANY_ROWS else MEMORY_LIMIT
        connection = execution.connect({"memory_limit": memory, "temp_directory": str(scratch / "spill")})
        try:
            # DuckDB 2.0.0 shows this limit but does not enforce it if it is part of the configuration.
            connection.execute(f"SET max_temp_directory_size = '{spill_bytes}B'")
            yield connection, scratch
        finally:
            execution.close(connection)


def _stored_bytes(tables: Mapping[str, TableFiles]) -> int:
    return sum(file.footer.bytes for files in tables.values() for file in files.files)


def is_small_run(row_counts: Mapping[str, int]) -> bool:
    """Return whether every table is small, so that most queries take longer to plan than to run."""
    return all(rows <= SMALL_ROWS for rows in row_counts.values())


def _suit_size(connection: DuckDBPyConnection, row_counts: Mapping[str, int]) -> None:
    """Reduce overhead if every table is small, which saves a quarter of the CPU time of the answers.

    A second thread would have no work, and filters from join keys cost more than the rows that they save.
    """
    if is_small_run(row_counts):
        connection.execute("SET threads = 1")
        connection.execute("SET disabled_optimizers = 'join_filter_pushdown'")


class _Rows(NamedTuple):
    """Facts about the created tables."""

    counts: dict[str, int]
    gaps: dict[str, tuple[str, ...]]
    distinct: frozenset[str] = frozenset()
    """Tables from which duplicates were removed."""


def _create_tables(
    connection: DuckDBPyConnection,
    link: Path,
    run: StoredRun,
    journals: JournalRows,
    share: Partition | None = None,
) -> _Rows:
    """Create every table, without impossible or duplicate rows; for a share, with its rows only."""
    result = _Rows({}, {})
    for table, files in run.tables.items():
        empty = connection.from_arrow(pa.Table.from_batches([], arrow_schema(table)))
        result.counts[table], result.gaps[table] = files.rows, ()
        if not files.files:
            empty.create_view(table)
            continue
        paths = [str(link / path.relative_to(run.folder)) for path in files.paths]
        try:
            stored = _stored_rows(connection, table, paths, empty, files, journals)
            condition = None if share is None else share.condition(table)
            stored = stored if condition is None else stored.filter(condition)
            checked = check_rows(stored, table, files, run.window, table in run.unsure)
            # A share of samples filters the whole table, so keep the result instead of repeating the filter.
            is_made = checked.is_distinct or (share is not None and share.partition == SAMPLE and table in BUCKETED)
            if is_made:
                checked.rows.create(table)
            if checked.is_distinct:
                result = result._replace(distinct=result.distinct | {table})
            if is_made or _is_kept(checked.rows, table, files):
                connection.execute(f"DROP TABLE IF EXISTS {_GATHERED}{table}")
            else:
                checked.rows.create_view(table)
        except (duckdb.Error, OSError, ValueError, pa.ArrowException) as error:
            raise UnreadableDataError.while_reading(run.folder, error) from error
        result.counts[table] -= checked.left_out
        result.gaps[table] = checked.gaps
    return result


def _stored_rows(
    connection: DuckDBPyConnection,
    table: str,
    paths: Sequence[str],
    empty: DuckDBPyRelation,
    files: TableFiles,
    journals: JournalRows,
) -> DuckDBPyRelation:
    """Return the rows of a table's files. Those of journals, and of many short files, are read into memory in batches.

    A statement holds metadata of each file that it reads, and DuckDB frees it late: with three tables of 40,000 files
    each, the last did not fit in memory.
    """
    # If all files have the same columns, questions need not match columns by name in each file.
    by_name = not files.is_plain
    many = paths if _are_many(files) else ()
    closed = None
    if paths and not many:
        closed = _contract_rows(connection.read_parquet(list(paths), union_by_name=by_name), empty)
        if not files.journals:
            return closed
    name = f"{_GATHERED}{table}"
    connection.execute(f"DROP TABLE IF EXISTS {name}")
    empty.create(name)
    for first in range(0, len(many), _FILES_AT_ONCE):
        some = connection.read_parquet(list(many[first : first + _FILES_AT_ONCE]), union_by_name=by_name)
        _contract_rows(some, empty).insert_into(name)
    for rows in _journal_rows(table, files.journals, journals):
        connection.from_arrow(rows).insert_into(name)
    gathered = connection.table(name)
    return gathered if closed is None else closed.union(gathered)


def _journal_rows(table: str, files: Sequence[StoredFile], journals: JournalRows) -> Iterator[pa.Table]:
    """Yield the rows of journals, those of many short ones together: a statement costs as much as thousands of rows."""
    held: list[pa.Table] = []
    held_rows = 0
    for file in files:
        if file.footer.rows:
            held.append(journals.take(file.path, table, file.footer.rows))
            held_rows += file.footer.rows
        if held_rows >= _ROWS_AT_ONCE:
            yield pa.concat_tables(held).combine_chunks()
            held, held_rows = [], 0
    if held:
        yield pa.concat_tables(held).combine_chunks()


def _is_small(files: TableFiles) -> bool:
    return files.rows <= SMALL_ROWS and sum(file.footer.bytes for file in files.files) <= SMALL_BYTES


def _are_many(files: TableFiles) -> bool:
    return len(files.paths) >= MANY_FILES and files.rows <= SHORT_FILE_ROWS * len(files.paths)


def _is_kept(rows: DuckDBPyRelation, table: str, files: TableFiles) -> bool:
    """Copy a table to memory if it is small or has many short files; return whether it was copied.

    Each question on a view would open its files and cast its rows. DuckDB spills rows that do not fit in memory. Also
    False if the rows cannot be read or held: the question that needs them reports the error.
    """
    if not _is_small(files) and not _are_many(files):
        return False
    try:
        rows.create(table)
    except duckdb.Error:
        return False
    return True


def _contract_rows(stored: DuckDBPyRelation, empty: DuckDBPyRelation) -> DuckDBPyRelation:
    """Return the stored rows with the contract's columns and types."""
    if (stored.columns, stored.types) == (empty.columns, empty.types):
        return stored
    found = set(stored.columns)
    columns = [
        (ColumnExpression(name) if name in found else ConstantExpression(None)).cast(kind).alias(name)
        for name, kind in zip(empty.columns, empty.types, strict=True)
    ]
    return stored.select(*columns)


def _create_macros(connection: DuckDBPyConnection, folder: Path, split: PartitionedRun | None = None) -> None:
    """Create the macros, and the tables that they depend on."""
    with _reading(folder):
        for question in map(find_question, OPENED):
            if split is None:
                connection.execute(f"CREATE TABLE {question.name} AS\n{question.sql}")
            else:
                merge_answers(connection, question, split.answers(question, {}))
    connection.execute(macros_sql())


def _lock_down(connection: DuckDBPyConnection, scratch: Path, folder: Path) -> None:
    """Restrict the connection to files in the run and the scratch folder, and lock its settings."""
    connection.execute(f"SET allowed_directories = [{literals(map(str, (scratch, folder)))}]")
    connection.execute("SET enable_external_access = false")
    connection.execute("SET lock_configuration = true")
