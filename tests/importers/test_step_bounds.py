"""What a trainer's log alone shows of changes: from the lines of a console to the words of every format."""

from pathlib import Path

import pytest

from rlscope import Analysis, analyze
from rlscope.document import as_dict
from rlscope.errors import AnalysisError
from rlscope.importers.options import import_options
from rlscope.reports.card import first_screen
from rlscope.reports.documents.analysis import analysis_document
from rlscope.reports.markdown import markdown
from rlscope.reports.page.html import render
from rlscope.reports.text import verdict as verdict_words
from rlscope.reports.text.step_bounds import assumption
from tests.importers import test_slime
from tests.importers.test_steps import console

STALENESS = "training/off_policy/trajectory_staleness/mean"
STEP = {"timing_s/gen": 5.0, "timing_s/update_actor": 2.0, "timing_s/update_weights": 3.0, "timing_s/step": 10.0}
"""10 s = 5 generation + 2 training + 3 update: a cap brings 10 / (5 + 3) = 1.25 to 10 / (2 + 3) = 2 times."""
OWN = "trainer=1,sampler=1"


def analyzed(folder: Path, metrics: dict[str, float], gpus: str = OWN) -> Analysis:
    return analyze(console(folder / "a.log", range(1, 31), metrics), options=import_options(gpus=gpus), page=False)


@pytest.fixture(scope="module")
def synchronous(tmp_path_factory: pytest.TempPathFactory) -> Analysis:
    return analyzed(tmp_path_factory.mktemp("sync"), STEP | {STALENESS: 0.0})


def test_a_log_that_reports_no_staleness_has_serial_steps(synchronous: Analysis) -> None:
    bounds = synchronous.step_bounds
    assert bounds is not None and bounds.phases.is_synchronous
    assert (bounds.phases.step_s, bounds.phases.generation_s, bounds.phases.update_s) == pytest.approx((10.0, 5.0, 3.0))
    assert bounds.phases.other_s == pytest.approx({"train": 2.0})
    assert bounds.largest is not None
    assert (bounds.largest.throughput_ratio_low, bounds.largest.throughput_ratio_high) == pytest.approx((1.25, 2.0))


def test_every_format_has_the_largest_bound(synchronous: Analysis) -> None:
    said = "a staleness cap of 1 or more would multiply throughput by 1.25 to 2"
    assert said in verdict_words.next_step(synchronous)
    first = as_dict(analysis_document(synchronous))["step_bounds"]["bounds"][0]
    assert (first["change"], first["headline"]) == ("staleness_cap", "a staleness cap of 1 or more: 1.25 to 2 times")
    assert "| a staleness cap of 1 or more | 1.25 to 2 times |" in markdown(first_screen(synchronous).values())
    assert "a staleness cap of 1 or more</" in render(synchronous.drawn)
    with pytest.raises(AnalysisError, match=r"by 1\.25 to 2\."):
        synchronous.what_if(max_staleness=1)


def test_the_lengths_that_a_log_reports_say_how_full_the_engines_are(tmp_path: Path) -> None:
    """10 s = 7 generation + 2 training + 1 update. Responses of half the longest leave 3.5 s of generation."""
    times = {"timing_s/gen": 7.0, "timing_s/update_weights": 1.0, STALENESS: 0.0}
    lengths = {"response_length/mean": 200.0, "response_length/max": 400.0}
    bounds = analyzed(tmp_path, STEP | times | lengths).step_bounds
    assert bounds is not None and bounds.phases.mean_length_ratio == 0.5
    (cap,) = (each for each in bounds.bounds if each.change == "staleness_cap")
    assert (cap.throughput_ratio_low, cap.throughput_ratio_high) == pytest.approx((10 / 8, 10 / 3.5))
    assert assumption(cap, bounds.phases).endswith(
        "high: engines stay full (the mean response is 50.0% of the longest)"
    )
    bounds = analyzed(tmp_path, STEP | times | {"response_length/mean": 200.0}).step_bounds
    assert bounds is not None and bounds.phases.mean_length_ratio is None


def test_staleness_is_shown_as_the_framework_reports_it(synchronous: Analysis) -> None:
    (reported,) = synchronous.staleness.reported
    assert (reported.name, reported.steps, reported.mean, reported.max) == (STALENESS, 30, 0.0, 0.0)
    assert f"As reported by verl, {STALENESS}: mean 0, max 0, 30 steps" in render(synchronous.drawn)


@pytest.mark.parametrize(
    ("more", "gpus", "is_synchronous", "shares_gpus"),
    [({STALENESS: 0.5}, OWN, False, False), ({}, OWN, None, False), ({}, "colocated=2", True, True)],
)
def test_staleness_and_placement_tell_how_steps_overlap(
    tmp_path: Path, more: dict[str, float], gpus: str, is_synchronous: bool | None, shares_gpus: bool
) -> None:
    bounds = analyzed(tmp_path, STEP | more, gpus).step_bounds
    assert bounds is not None
    assert (bounds.phases.is_synchronous, bounds.phases.shares_gpus) == (is_synchronous, shares_gpus)
    assert (bounds.phases.generation_s, bounds.phases.update_s) == pytest.approx((5.0, 3.0))


def test_trainers_that_hardly_wait_limit_the_throughput(tmp_path: Path) -> None:
    """The log hides the samplers, of whose steps of 10 s it shows 0.75 s. Trainers wait and update for 0.75 s."""
    times = {"timing_s/gen": 0.5, "timing_s/update_actor": 9.25, "timing_s/update_weights": 0.25}
    analysis = analyzed(tmp_path, STEP | times)
    assert verdict_words.headline(analysis) == "Training limits throughput"
    assert verdict_words.why(analysis).endswith(
        "trainers hardly waited for samples: training 92.5%, waiting for samples 5.0%, publishing weights 2.5%."
    )
    assert verdict_words.next_step(analysis).startswith("Make the training step faster")


def test_a_log_that_shows_its_rollouts_but_no_lengths_has_bounds_too(tmp_path: Path) -> None:
    """Steps of 46 s, 28 of them waits: a cap gains 46 / 18 at most, faster engines 46 / max(23, 18)."""
    log = tmp_path / "job.log"
    log.write_text("".join(test_slime.run_lines(test_slime.SEPARATE, steps=30)))
    analysis = analyze(log, options=import_options(utc_offset="+00:00"), page=False)
    bounds = analysis.step_bounds
    assert not analysis.hides_samplers and bounds is not None
    most = {each.change: each.throughput_ratio_high for each in bounds.bounds}
    assert (most["staleness_cap"], most["double_generation"]) == pytest.approx((46 / 18, 2.0), rel=0.01)


def test_a_log_that_supports_no_verdict_has_no_bounds(tmp_path: Path) -> None:
    """The phases leave 4 of 14 s, far above the 10% at which the names are known."""
    assert analyzed(tmp_path, STEP | {"timing_s/step": 14.0}).step_bounds is None
