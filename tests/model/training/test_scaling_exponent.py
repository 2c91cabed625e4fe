"""The scaling exponent from runs at other numbers of trainer GPUs: recovered, surer than before, and never certain."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from rlscope.model.training.scaling import RUN_ERROR, RunSteps, TrainingRate, fit_training_rate
from tests.model.training.test_scaling import drawn

RATE_PER_S = 24_000.0
"""Tokens per second of 8 trainer GPUs."""
SEEN = 8


def run_at(
    gpus: int, *, exponent: float = 0.7, overhead_s: float = 0.0, spread: float = 0.3, steps: int = 40
) -> RunSteps:
    tokens = 1e6 * np.exp(spread * np.random.default_rng(gpus).standard_normal(steps))
    return RunSteps(gpus, tokens, overhead_s + tokens / (RATE_PER_S * (gpus / SEEN) ** exponent))


def fit(own: RunSteps, *others: RunSteps) -> TrainingRate:
    return fit_training_rate(own, np.random.default_rng(1), others=others)


def width(found: TrainingRate) -> float:
    low, high = np.quantile(drawn(found).scaling_exponent, [0.05, 0.95])
    return float(high - low)


def step_s(found: TrainingRate, gpus: int) -> float:
    """Of the best estimate."""
    speedup = (gpus / SEEN) ** found.trainer.scaling_exponent
    return found.trainer.overhead_s + 1e6 / (found.trainer.tokens_per_gpu_s * SEEN * speedup)


def drawn_step_s(found: TrainingRate, gpus: int) -> np.ndarray:
    draws = drawn(found)
    return draws.overhead_s + 1e6 / (draws.tokens_per_gpu_s * SEEN * (gpus / SEEN) ** draws.scaling_exponent)


@pytest.mark.parametrize("gpus", [2, 32])
@pytest.mark.parametrize("overhead_s", [0.0, 5.0])
@pytest.mark.parametrize("exponent", [0.7, 0.9, 1.0])
def test_the_exponent_is_recovered_from_one_other_run(gpus: int, overhead_s: float, exponent: float) -> None:
    found = fit(*(run_at(each, exponent=exponent, overhead_s=overhead_s) for each in (SEEN, gpus)))
    # Perfect scaling is nearly the most that is taken to be possible, so what is known of it is one-sided.
    assert found.trainer.scaling_exponent == pytest.approx(exponent, abs=0.04)
    low, high = np.quantile(drawn(found).scaling_exponent, [0.05, 0.95])
    assert low < exponent < high
    assert found.scaling_seen_at == (gpus,)


@pytest.mark.parametrize("overhead_s", [0.0, 3.0])
@pytest.mark.parametrize("gpus", [4, 16])
def test_where_the_overhead_does_not_show_the_steps_that_were_seen_come_out_right_all_the_same(
    gpus: int, overhead_s: float
) -> None:
    own, other = (run_at(each, spread=0.0, overhead_s=overhead_s) for each in (SEEN, gpus))
    found = fit(own, other)
    assert step_s(found, SEEN) == pytest.approx(own.seconds.mean())
    assert step_s(found, gpus) == pytest.approx(other.seconds.mean(), rel=0.04)
    # What is overhead and what is loss of scaling is not known, and the draws hold both.
    assert drawn(found).overhead_s.min() < 1.0 and drawn(found).overhead_s.max() > 4.0
    assert np.corrcoef(drawn(found).overhead_s, drawn(found).scaling_exponent)[0, 1] > 0.8
    near, far = (np.log(drawn_step_s(found, each)).std() for each in (gpus, gpus**2 // SEEN * gpus // SEEN))
    assert far > 2.5 * near


def test_rate_and_overhead_that_the_run_tells_stay_its_own() -> None:
    alone, heard = fit(run_at(SEEN, overhead_s=5.0)), fit(run_at(SEEN, overhead_s=5.0), run_at(16, overhead_s=9.0))
    for own, other in zip((heard.trainer, *heard.draws), (alone.trainer, *alone.draws), strict=True):
        assert replace(own, scaling_exponent=other.scaling_exponent) == other


def test_however_long_the_runs_are_they_may_differ_by_more_than_their_gpus() -> None:
    long = fit(run_at(SEEN, steps=2_000), run_at(16, steps=2_000))
    # Two runs, each off by the error of a run, and a doubling of the GPUs.
    assert drawn(long).scaling_exponent.std() == pytest.approx(np.sqrt(2) * RUN_ERROR / np.log(2), rel=0.2)


def test_the_error_of_the_own_run_is_shared_by_all_others() -> None:
    # Three runs with twice the GPUs tell as much as one, were it not for its own error: sqrt(1 + 1/3) against sqrt(2).
    one, three = (fit(run_at(SEEN), *[run_at(16)] * count) for count in (1, 3))
    ratio = drawn(three).scaling_exponent.std() / drawn(one).scaling_exponent.std()
    assert ratio == pytest.approx(np.sqrt(4 / 6), rel=0.1)


@pytest.mark.parametrize("spread", [0.0, 0.3])
def test_a_run_with_as_many_trainer_gpus_changes_nothing(spread: float) -> None:
    own = run_at(SEEN, spread=spread)
    alone, heard = fit(own), fit(own, replace(own, seconds=own.seconds * 1.5))
    assert heard.scaling_seen_at == ()
    assert heard.draws == alone.draws
    # Nor beside one that says something.
    both = fit(own, run_at(SEEN), run_at(16))
    assert both.draws == fit(own, run_at(16)).draws


@pytest.mark.parametrize(
    ("exponents", "contradicted"),
    [([0.7, 0.7], False), ([1.05], False), ([1.2], True), ([-0.2], True), ([0.3, 1.0], True)],
)
def test_runs_that_no_exponent_explains_are_said_to_contradict_and_are_believed_less(
    exponents: Sequence[float], contradicted: bool
) -> None:
    others = [run_at(gpus, exponent=exponent) for gpus, exponent in zip((16, 4), exponents, strict=False)]
    found = fit(run_at(SEEN), *others)
    assert found.scaling_contradicted == contradicted
    if len(exponents) == 2:
        assert (width(found) > 0.2) == contradicted
