"""Numbers that no run can have are refused where they are read, counted, and cost nothing else."""

import math
from pathlib import Path

import pytest

from rlscope.importers.quantities import RefusedNumberError, epoch_ns, named_reals, number, real
from rlscope.importers.target import ImportTarget
from tests.importers.filling import Filled
from tests.importers.test_steps import ASYNC, SYNC, console, imported_to, jsonl, verl_line


@pytest.mark.parametrize("value", ["1.2.3", "", None, [1]])
def test_what_is_no_number_is_refused(value: object) -> None:
    assert number(value) is None
    with pytest.raises(RefusedNumberError):
        real(value)


def test_the_numbers_of_a_printed_dictionary_are_read_in_every_form_and_its_other_values_are_not() -> None:
    printed = "{'a': np.float64(1.5), 'b': '2e-3', 'c': nan, 'd': tensor(4, device='cuda:0'), 'e': [5], 'f': 6 }"
    assert named_reals(printed) == {"a": 1.5, "b": 0.002, "d": 4.0, "f": 6.0}


@pytest.mark.parametrize(("seconds", "is_time"), [(1e9, True), (999_999_999.0, False), (4.6e9, True), (4.7e9, False)])
def test_a_time_is_one_since_2001_that_the_format_can_hold(seconds: float, is_time: bool) -> None:
    assert (epoch_ns(seconds) is not None) is is_time
    assert epoch_ns(True) is None


@pytest.mark.parametrize("metric", ["timing_s/gen", "timing_s/step", "perf/total_num_tokens"])
@pytest.mark.parametrize("value", [1e300, math.inf, -1e16])
def test_a_step_with_absurd_seconds_or_tokens_is_left_out_and_counted(
    tmp_path: Path, metric: str, value: float
) -> None:
    log = console(tmp_path / "a.log", range(1, 40), ASYNC)
    log.write_text(log.read_text() + verl_line(40, {**ASYNC, metric: value}) + verl_line(41, ASYNC))
    imported = imported_to(tmp_path / "run", log)
    assert (imported.files[0].lines, imported.files[0].bad_lines) == (41, 1)
    assert any("40 of 41 steps; missing: 40" in note for note in imported.notes)


def test_seconds_that_are_no_number_leave_the_rest_of_their_step(tmp_path: Path) -> None:
    log = console(tmp_path / "a.log", range(1, 3), {**SYNC, "timing_s/gen": math.nan})
    assert imported_to(tmp_path / "run", log).files[0].bad_lines == 0


@pytest.mark.parametrize("step", [str(2**63), "9" * 400, "9" * 5_000, "1e300", "1e999"])
def test_a_step_of_an_absurd_number_is_left_out_and_counted(tmp_path: Path, step: str) -> None:
    log = jsonl(tmp_path / "a.jsonl", [1, 2, 3], SYNC)
    log.write_text(log.read_text() + f'{{"step": {step}, "data": {{"timing_s/step": 1, "timing_s/gen": 1}}}}\n')
    imported = imported_to(tmp_path / "run", log)
    assert (imported.files[0].lines, imported.files[0].bad_lines) == (4, 1)
    assert imported.coverage == {"trainer": 1.0}


def test_a_row_that_the_format_cannot_hold_is_left_out_and_said(tmp_path: Path) -> None:
    target = ImportTarget(tmp_path / "run", "run", relative_origin_ns=0)
    target.add_worker("w", "trainer")
    span = {"worker_id": "w", "start_ns": 0, "end_ns": 10}
    target.add("train_steps", {**span, "step": 1, "version_in": 0, "version_out": 1})
    target.add("train_steps", {**span, "step": 2**62, "version_in": 0, "version_out": 1})
    target.add("activities", {**span, "activity": "other", "end_ns": 2**62})
    target.extend_worker("w", 0, 10)
    target.extend_worker("w", 0, 2**62)
    filled = Filled(tmp_path / "run", target.finish("verl"))
    assert [len(filled.rows(table)) for table in ("train_steps", "activities")] == [1, 0]
    assert any("2 rows left out: a number or a time is out of range" in note for note in filled.imported.notes)
    assert target.extent() == (0, 10)
