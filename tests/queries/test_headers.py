"""The header of each question is what DuckDB says of it, and it reads no table that its header does not name."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from duckdb import DuckDBPyConnection
from rlscope_otel.schema import TABLES

from rlscope.trace.query import Argument, keep_inputs
from rlscope.trace.questions import (
    AGGREGATES,
    DRIVER,
    SAMPLE,
    WORKER,
    Question,
    find_question,
    questions,
    read_question,
)
from rlscope.trace.store import OpenTables
from tests.case_files import open_empty

VALUES: dict[str, Argument] = {"BIGINT": 1, "BOOLEAN": True, "DOUBLE": 1.0, "VARCHAR": "x"}
EVERY_ARGUMENT = {arg.name: VALUES[arg.type] for question in questions().values() for arg in question.args}


@pytest.fixture(scope="module")
def empty() -> DuckDBPyConnection:
    return open_empty()


@pytest.fixture
def connection(empty: DuckDBPyConnection) -> Iterator[DuckDBPyConnection]:
    """A run without rows. What a test makes or drops in it is there again for the next one."""
    empty.begin()
    yield empty
    empty.rollback()


@pytest.mark.parametrize("question", questions().values(), ids=lambda question: question.name)
def test_the_header_names_the_columns_types_and_arguments_that_duckdb_sees(
    question: Question, connection: DuckDBPyConnection
) -> None:
    opened = OpenTables(Path(), connection)
    keep_inputs(opened, question, EVERY_ARGUMENT)
    for table in {*TABLES, "workers", *opened.kept_answers} - set(question.tables):
        kind = "TABLE" if table in opened.kept_answers else "VIEW"
        connection.execute(f"DROP {kind} {table}")
    (statement,) = connection.extract_statements(question.sql)
    assert statement.named_parameters == {arg.name for arg in question.args}
    values = {arg.name: VALUES[arg.type] for arg in question.args}
    answer = connection.sql(question.sql, params=values or None)
    assert list(zip(answer.columns, map(str, answer.types), strict=True)) == [
        (column.name, column.type) for column in question.outputs
    ]
    assert len(set(answer.columns)) == len(answer.columns) and question.grain.startswith("one row")


def test_no_question_is_longer_than_a_screen_or_selects_every_column_at_its_end() -> None:
    for question in questions().values():
        lines = question.sql.splitlines()
        assert len(lines) <= 100, question.name
        assert not any(line.startswith("SELECT *") for line in lines), question.name


HEADER = """-- How many?
--
-- in   samples
-- out  rows  BIGINT  rows
-- grain: one row
"""


def test_a_line_that_is_indented_further_continues_the_one_before_it(tmp_path: Path) -> None:
    path = tmp_path / "how_many.sql"
    column = "-- out  rows  BIGINT  rows; NULL if\n--                     none was recorded\n"
    path.write_text(HEADER.replace("-- out  rows  BIGINT  rows\n", column) + "-- partition: driver\nSELECT 1\n")
    question = read_question(path)
    assert [each.meaning for each in question.outputs] == ["rows; NULL if none was recorded"]
    assert question.grain == "one row"


def test_a_header_is_a_question_and_says_how_the_answers_of_shares_are_merged() -> None:
    for question in questions().values():
        assert question.question.endswith("?"), question.name
        assert question.partition in (WORKER, SAMPLE, DRIVER), f"{question.name}: {DRIVER} is always correct"
        assert ("\n-- merge: " in question.sql) == (question.partition != DRIVER), question.name
        merge = question.merge or {}
        assert merge.keys() <= {column.name for column in question.outputs}, question.name
        assert set(merge.values()) <= AGGREGATES.keys(), question.name


def test_what_shares_answer_stands_on_answers_of_the_same_shares_alone() -> None:
    for question in questions().values():
        needed = [find_question(table) for table in question.tables if table in questions()]
        if question.partition == DRIVER:
            continue
        for each in needed:
            assert (each.partition, each.merge) == (question.partition, {}), f"{question.name} stands on {each.name}"


def test_a_share_of_samples_is_asked_of_no_table_that_it_lacks() -> None:
    held = {"samples", "deliveries", "train_steps", "weight_updates", "workers"}
    for question in questions().values():
        if question.partition == SAMPLE:
            assert set(question.tables) - set(questions()) <= held, question.name
