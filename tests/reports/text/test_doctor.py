"""The lines of code that doctor names for a recorded run, by what the run lacks."""

from pathlib import Path

import pytest

import rlscope
from rlscope.analysis.checkup import examine
from rlscope.reports.text import doctor
from rlscope.trace.store import open_run
from tests.trace_folder import activity, worker, write_run

SECOND = 10**9


def test_updates_on_shared_gpus_need_no_second_phase(tmp_path: Path) -> None:
    phases = "timing_s/gen:3.0 - timing_s/update_actor:5.0 - timing_s/update_weights:2.0 - timing_s/step:10.0"
    (tmp_path / "a.log").write_text("".join(f"step:{step} - {phases}\n" for step in range(3)), encoding="utf-8")
    check = next(each for each in rlscope.doctor(tmp_path / "a.log").checks if each.name == "weight updates")
    assert (check.status, check.found) == ("there", "3 published, on GPUs that the roles share")


@pytest.mark.parametrize(("generating_s", "status", "is_told"), [(2, "in part", True), (10, "there", False)])
def test_a_sampler_whose_passes_are_out_of_sight_may_record_its_requests(
    tmp_path: Path, generating_s: int, status: str, is_told: bool
) -> None:
    run = write_run(
        tmp_path,
        [worker("t", "trainer", 0, 10 * SECOND), worker("e", "sampler", 0, 10 * SECOND)],
        activities=[
            activity("e", 0, generating_s * SECOND, "generate"),
            activity("t", 0, 10 * SECOND, "wait", "samples"),
        ],
    )
    with open_run(run) as opened:
        check = next(each for each in doctor.checks(examine(opened)) if each.name == "time of the sampler workers")
    assert (check.status, 'wrap each request in run.activity("generate")' in check.how) == (status, is_told)


def test_a_limit_on_running_requests_that_the_engines_state_is_not_missing(tmp_path: Path) -> None:
    workers = [worker("t", "trainer", 0, SECOND), worker("e", "sampler", 0, SECOND)]
    for folder, stated in (("silent", {}), ("stating", {"max_running": 16})):
        with open_run(write_run(tmp_path / folder, [workers[0], workers[1] | stated])) as opened:
            check = next(each for each in doctor.checks(examine(opened)) if each.name == "settings of the run")
        assert ("max_running" in check.found.split("missing: ")[1]) == (not stated)
