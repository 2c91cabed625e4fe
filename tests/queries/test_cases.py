"""Each question answers what its case file says; the cases name every column and argument of its header."""

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest

from rlscope.trace.query import ask, standard_arguments
from rlscope.trace.questions import find_question, questions
from tests.case_files import Case, cases_of, cell, text_rows
from tests.trace_folder import worker

CASES = cases_of(Path(__file__).parent / "cases")
OF_THE_POLICY: Final = ("engine_buckets", "pass_costs", "pass_latency", "preemptions", "step_tails")
"""Questions about engine rows that leave out those of other models."""


@cache
def answered(case: Case) -> list[dict[str, Any]]:
    with case.open() as run:
        return ask(run, case.file, standard_arguments(run) | case.args).rows(named=True)


def expected(case: Case) -> list[dict[str, Any]]:
    types = {column.name: column.type for column in find_question(case.file).outputs}
    return [{name: near(cell(text, types[name])) for name, text in row.items()} for row in text_rows(case.expect)]


def near(value: Any) -> Any:
    return pytest.approx(value, rel=1e-12) if isinstance(value, float) else value


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.file}: {case.name}")
def test_the_question_answers_what_the_case_expects(case: Case) -> None:
    rows = expected(case)
    answer = answered(case)
    columns = text_columns(case)
    found = [{name: row[name] for name in columns} for row in answer]
    if "in no order" in find_question(case.file).grain:
        found.sort(key=lambda row: next((place for place, each in enumerate(rows) if each == row), len(rows)))
    assert found == rows


@pytest.mark.parametrize("name", OF_THE_POLICY)
def test_the_rows_of_an_auxiliary_engine_change_no_answer_about_the_policy(name: str) -> None:
    cases = [each for each in CASES if each.file == name and "engine_steps" in each.tables]
    assert all(answered(beside(case, "auxiliary")) == answered(case) for case in cases)
    assert any(answered(beside(case, "sampler")) != answered(case) for case in cases)


def beside(case: Case, role: str) -> Case:
    """The case with a worker more, which has every engine row of the others again."""
    rows = case.tables["engine_steps"]
    last_ns = max(row["end_ns"] for row in rows)
    tables = {**case.tables, "engine_steps": [*rows, *({**row, "worker_id": "judge"} for row in rows)]}
    return replace(case, tables=tables, workers=[*case.workers, worker("judge", role, stop_ns=last_ns)])


def text_columns(case: Case) -> list[str]:
    return case.expect.strip().splitlines()[0].split()


@pytest.mark.parametrize("name", questions())
def test_every_question_has_cases_that_name_each_of_its_columns_and_arguments(name: str) -> None:
    question = find_question(name)
    own = [case for case in CASES if case.file == name]
    assert own, f"tests/queries/cases/{name}.toml is missing"
    assert {column for case in own for column in text_columns(case)} == {column.name for column in question.outputs}
    assert {argument for case in own for argument in case.args} >= {argument.name for argument in question.args}


def test_every_case_file_belongs_to_a_question() -> None:
    assert {case.file for case in CASES} == set(questions())
