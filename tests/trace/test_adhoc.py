"""The user's own SELECT runs on a connection that reads the run and nothing else, and changes nothing."""

from collections.abc import Iterator

import polars as pl
import pytest

from rlscope.errors import QueryError
from rlscope.trace.query import ask_own
from rlscope.trace.store import OpenRun, open_run
from tests.trace_folder import engine_row, train_row, worker, write_run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenRun]:
    """Open for all statements: none changes what the next one reads."""
    folder = write_run(
        tmp_path_factory.mktemp("run"),
        [worker("e0", "sampler"), worker("t0")],
        train_steps=[train_row("t0", 0, 10, 1), train_row("t0", 10, 30, 2)],
        engine_steps=[engine_row("e0", 0, 10, running=3)],
    )
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
