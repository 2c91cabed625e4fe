"""The header of each question is what DuckDB says of it, and it reads no table that its header does not name."""

import pytest

from rlscope.trace.query import Argument, keep_inputs
from rlscope.trace.questions import Question, questions
from rlscope.trace.store import EXTENTS, TABLE_NAMES, open_empty

VALUES: dict[str, Argument] = {"BIGINT": 1, "BOOLEAN": True, "DOUBLE": 1.0, "VARCHAR": "x"}
EVERY_ARGUMENT = {arg.name: VALUES[arg.type] for question in questions().values() for arg in question.args}


@pytest.mark.parametrize("question", questions().values(), ids=lambda question: question.name)
def test_the_header_names_the_columns_types_and_arguments_that_duckdb_sees(question: Question) -> None:
    connection = open_empty()
    keep_inputs(connection, question, EVERY_ARGUMENT, kept := {EXTENTS: {}})
    for table in {*TABLE_NAMES, "workers", *kept} - set(question.tables):
        kind = "TABLE" if table in kept else "VIEW"
        connection.execute(f"DROP {kind} {table}")
    (statement,) = connection.extract_statements(question.sql)
    assert statement.named_parameters == {arg.name for arg in question.args}
    values = {arg.name: VALUES[arg.type] for arg in question.args}
    answer = connection.sql(question.sql, params=values or None)
    assert list(zip(answer.columns, map(str, answer.types), strict=True)) == [
        (column.name, column.type) for column in question.outputs
    ]
    assert question.grain.startswith("one row")


def test_no_question_is_longer_than_a_screen_or_selects_every_column_at_its_end() -> None:
    for question in questions().values():
        lines = question.sql.splitlines()
        assert len(lines) <= 100, question.name
        assert not any(line.startswith("SELECT *") for line in lines), question.name
