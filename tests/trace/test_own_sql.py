"""A user's SELECT reads the run and nothing else, and ends: by itself, at its limits, or when it is interrupted.

It changes nothing, opens no file, and learns no path.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest

from rlscope.errors import QueryError
from rlscope.trace.execution import SqlLimits
from rlscope.trace.query import ask_own
from rlscope.trace.store import OpenRun, open_run
from tests.trace_folder import engine_row, train_row, worker, write_run

SECRET = "the-secret-of-another-user"
FOREVER = "SELECT count(*) FROM range(100000000) a, range(1000000) b WHERE a.range + b.range = 7"


THROUGH_SCRATCH = "replace(current_setting('{}')::VARCHAR, '/spill', '') || '/run/../secret.csv'"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenRun]:
    """Open for all statements: none changes what the next one reads."""
    base = tmp_path_factory.mktemp("locked")
    (base / "secret.csv").write_text(f"a\n{SECRET}\n")
    folder = write_run(
        base / "run",
        [worker("e0", "sampler"), worker("t0")],
        train_steps=[train_row("t0", 0, 10, 1), train_row("t0", 10, 30, 2)],
        engine_steps=[engine_row("e0", 0, 10, running=3)],
    )
    (folder / "elsewhere").symlink_to("/usr/share", target_is_directory=True)
    with open_run(folder) as opened:
        yield opened


@pytest.mark.parametrize(
    ("sql", "rows"),
    [
        ("SELECT step, end_ns - start_ns AS length_ns FROM train_steps ORDER BY step", [(1, 10), (2, 20)]),
        ("WITH e AS (SELECT running FROM engine_steps) SELECT max(running) FROM e;", [(3,)]),
        ("FROM workers SELECT worker_id ORDER BY ALL", [("e0",), ("t0",)]),
        ("SELECT worker_id, end_ns FROM worker_extents ORDER BY ALL", [("e0", 100), ("t0", 100)]),
        ("-- a comment\nVALUES (1), (2)", [(1,), (2,)]),
        ("SELECT count(*) FROM samples", [(0,)]),
        ("DESCRIBE SELECT step FROM train_steps", [("step", "BIGINT", "YES", None, None, None)]),
    ],
)
def test_a_select_is_answered(run: OpenRun, sql: str, rows: list[tuple[object, ...]]) -> None:
    assert ask_own(run, sql).rows() == rows


@pytest.mark.parametrize(
    ("sql", "found"),
    [
        ("COPY train_steps TO '{folder}/x.csv'", "COPY"),
        ("ATTACH '{folder}/x.db'", "ATTACH"),
        ("SET enable_external_access = true", "SET"),
        ("CREATE MACRO busy_share(a, b) AS 1", "CREATE"),
        ("DELETE FROM worker_extents", "DELETE"),
        ("CALL pragma_version()", "CALL"),
        ("SELECT 1; SELECT 2", "SELECT, SELECT"),
        ("SELECT 1; DROP TABLE worker_extents", "SELECT, DROP"),
        ("EXPLAIN ANALYZE COPY workers TO '{folder}/x.csv'", "EXPLAIN"),
        ("-- only a comment", "nothing"),
    ],
)
def test_anything_but_one_select_is_refused_by_name(run: OpenRun, sql: str, found: str) -> None:
    before = sorted(run.folder.rglob("*"))
    with pytest.raises(QueryError) as error:
        ask_own(run, sql.format(folder=run.folder))
    assert str(error.value).startswith("ad-hoc SQL ")
    assert f": found {found}; expected one SELECT. " in str(error.value)
    assert sorted(run.folder.rglob("*")) == before
    assert len(ask_own(run, "SELECT * FROM worker_extents")) == 2


@pytest.mark.parametrize(
    ("sql", "why"),
    [
        ("SELEC 1", "syntax error"),
        ("SELECT * FROM no_such_table", "no_such_table"),
        ("SELECT INTERVAL 1 DAY", "interval"),
    ],
)
def test_sql_that_duckdb_refuses_is_a_message(run: OpenRun, sql: str, why: str) -> None:
    with pytest.raises(QueryError, match=why) as error:
        ask_own(run, sql)
    assert str(error.value).startswith("SQL error: ")


def test_the_variables_of_the_program_are_no_tables(run: OpenRun) -> None:
    hidden = pl.DataFrame({"password": ["x"]})
    assert len(hidden) == 1
    for name in ("hidden", "pl", "run", "sql", "statements"):
        with pytest.raises(QueryError, match="SQL error"):
            ask_own(run, f"SELECT * FROM {name}")


def paths_to_a_file(run: OpenRun) -> list[str]:
    folder = run.folder
    return [
        str(folder.parent / "secret.csv"),
        str(folder / ".." / "secret.csv"),
        str(folder / "elsewhere" / ".." / ".." / "etc" / "passwd"),
        str(folder / "train_steps" / "t0-000001.parquet"),
        str(folder / "run.json"),
        "file://" + str(folder.parent / "secret.csv"),
        "/dev/stdin",
        "/proc/self/environ",
    ]


def test_no_table_function_of_duckdb_opens_a_file(run: OpenRun) -> None:
    functions = ask_own(
        run, "SELECT DISTINCT function_name FROM duckdb_functions() WHERE function_type = 'table' ORDER BY ALL"
    )["function_name"]
    assert len(functions) > 80
    opened: list[str] = []
    text, *_, rows, document = (path for path in paths_to_a_file(run) if path.startswith(str(run.folder.parent)))
    ways = [f"'{path}'" for path in paths_to_a_file(run)]
    ways += [given for path in (text, rows, document) for given in (f"['{path}']", f"'{path}', '{path}'")]
    for function in functions:
        for given in ways:
            try:
                answer = ask_own(run, f"SELECT * FROM {function}({given})")
            except QueryError:
                continue
            if any(each in str(answer.rows()) for each in (SECRET, "root:", "PAR1", "rlscope-trace")) or (
                function not in HARMLESS
            ):
                opened.append(f"{function}({given}): {answer.rows()[:1]}")
    assert opened == []


HARMLESS = frozenset(
    {"unnest", "json_each", "json_tree", "pragma_table_info", "repeat_row", "test_vector_types", "which_secret"}
)
"""Those that take any text, and make rows of the text itself."""


@pytest.mark.parametrize("number", range(8))
def test_a_path_in_place_of_a_table_opens_no_file(run: OpenRun, number: int) -> None:
    with pytest.raises(QueryError, match="SQL error"):
        ask_own(run, f"SELECT * FROM '{paths_to_a_file(run)[number]}'")


def test_nothing_that_sql_can_ask_of_duckdb_holds_a_path_of_this_machine(run: OpenRun) -> None:
    known = [str(run.folder.parent), str(Path.home()), "rlscope-", os.environ.get("USER") or "no user"]
    told = [
        f"{table}: {value}"
        for table in ("duckdb_settings()", "duckdb_databases()", "duckdb_views()", "duckdb_temporary_files()")
        for row in ask_own(run, f"SELECT * FROM {table}").rows()
        for value in map(str, row)
        if any(each in value for each in known if each != "/")
    ]
    assert told == []


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM enable_logging(storage := 'file', storage_path := '{folder}/log')",
        "SELECT * FROM enable_profiling(save_location := '{folder}/log')",
        "SELECT * FROM json_execute_serialized_sql(json_serialize_sql('SELECT * FROM read_text(''/etc/passwd'')'))",
        "SELECT * FROM query('SELECT * FROM read_text(''/etc/passwd'')')",
        "SELECT * FROM query_table('/etc/passwd')",
        "SELECT * FROM 'https://example.invalid/x.parquet'",
        "SELECT getenv('HOME')",
        "WITH gone AS (COPY workers TO '{folder}/x.csv') SELECT * FROM gone",
        "WITH gone AS (DELETE FROM worker_extents RETURNING *) SELECT * FROM gone",
        *(
            f"SELECT * FROM read_text({THROUGH_SCRATCH.format(each)})"
            for each in ("temp_directory", "allowed_directories", "home_directory")
        ),
    ],
)
def test_a_way_around_is_an_error_and_leaves_nothing(run: OpenRun, sql: str) -> None:
    before = sorted(run.folder.parent.rglob("*"))
    with pytest.raises(QueryError):
        ask_own(run, sql.format(folder=run.folder.parent))
    assert sorted(run.folder.parent.rglob("*")) == before
    assert len(ask_own(run, "SELECT * FROM worker_extents")) == 2


def test_a_select_without_end_is_an_error_that_names_the_limit(run: OpenRun) -> None:
    with pytest.raises(QueryError, match=r"a SELECT that ran for 0\.3 s without an answer") as error:
        ask_own(run, FOREVER, SqlLimits(time_s=0.3))
    assert "--timeout" in str(error.value)
    assert ask_own(run, "SELECT 1 AS one").rows() == [(1,)]


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT range, hash(range) FROM range(50000000) ORDER BY hash(range)",
        "SELECT range FROM range(1000000000)",
        "SELECT repeat('x', 1000000) FROM range(1000)",
    ],
)
def test_a_select_that_needs_too_much_memory_is_an_error_that_names_the_limit(run: OpenRun, sql: str) -> None:
    with pytest.raises(QueryError, match="a SELECT that needs more than 100 MB of memory") as error:
        ask_own(run, sql, SqlLimits(memory_mb=100))
    assert "--max-memory-mb" in str(error.value)


def test_a_signal_ends_a_runaway_select_and_its_temporary_files(run: OpenRun) -> None:
    sql = run.folder.parent / "forever.sql"
    sql.write_text(FOREVER)
    command = [sys.executable, "-c", "from rlscope.cli import main; main()", "query", str(run.folder)]
    begun_s = time.monotonic()
    subprocess.run([*command, "SELECT 1"], check=True, capture_output=True)
    select_s = time.monotonic() - begun_s
    for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
        scratch = run.folder.parent / f"tmp{code}"
        scratch.mkdir()
        environment = {**os.environ, "TMPDIR": str(scratch)}
        process = subprocess.Popen([*command, "-f", str(sql)], env=environment, stderr=subprocess.DEVNULL)
        while not list(scratch.iterdir()):
            assert process.poll() is None
            time.sleep(0.02)
        # From its folder on, a whole command with imports takes longer than the SELECT needs to begin.
        time.sleep(0.5 * select_s)
        assert process.poll() is None
        process.send_signal(number)
        assert process.wait(timeout=30) == code
        assert list(scratch.iterdir()) == []
