"""The trainers' rate: overhead where it shows, the exponent's prior, and draws that fan out away from the run."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from rlscope.model.training.scaling import (
    Elasticity,
    RunSteps,
    TrainingRate,
    exponents_from_steps,
    fit_training_rate,
)


def steps(count: int, overhead_s: float = 5.0, spread: float = 0.3, noise: float = 0.01, seed: int = 0) -> RunSteps:
    """Steps of a million tokens or so on 8 GPUs: 3000 per second and GPU."""
    rng = np.random.default_rng(seed)
    tokens = 1e6 * np.exp(spread * rng.standard_normal(count))
    return RunSteps(8, tokens, (overhead_s + tokens / (3000 * 8)) * np.exp(noise * rng.standard_normal(count)))


def drawn(found: TrainingRate) -> SimpleNamespace:
    """The draws of a rate, as arrays."""
    names = ("tokens_per_gpu_s", "scaling_exponent", "overhead_s")
    return SimpleNamespace(**{name: np.array([getattr(each, name) for each in found.draws]) for name in names})


def fit(given: RunSteps) -> TrainingRate:
    return fit_training_rate(given, np.random.default_rng(1))


def test_an_overhead_shows_in_steps_of_different_size() -> None:
    found = fit(steps(60))
    assert found.trainer.overhead_s == pytest.approx(5.0, rel=0.15)
    assert found.trainer.tokens_per_gpu_s == pytest.approx(3000, rel=0.05)
    assert (len(found.draws), drawn(found).overhead_s.min() > 0.0) == (200, True)


@pytest.mark.parametrize(
    "given",
    [
        steps(60, spread=0.0),
        steps(60, spread=0.01, noise=0.05),
        steps(60, overhead_s=0.0, seed=2),
        steps(40, overhead_s=50.0, spread=0.02),
        RunSteps(8, np.array([1000.0, 2000.0, 3000.0]), np.array([7.0, 9.0, 11.0])),
        RunSteps(8, np.array([800.0]), np.array([2.0])),
    ],
    ids=["all alike", "more noise than spread", "no overhead", "nearly alike", "three steps", "one step"],
)
def test_an_overhead_that_does_not_show_is_left_in_the_rate(given: RunSteps) -> None:
    found = fit(given)
    assert (found.trainer.overhead_s, drawn(found).overhead_s.max()) == (0.0, 0.0)
    assert found.trainer.tokens_per_gpu_s == pytest.approx(given.tokens.sum() / given.seconds.sum() / 8)


def test_the_prior_of_the_exponent_is_a_normal_law_cut_to_its_range() -> None:
    drawn = exponents_from_steps(np.random.default_rng(0), 20_000, None)
    assert drawn[0] == pytest.approx(0.7734, abs=5e-4)
    assert (drawn.min() > 0.0, drawn.max() <= 1.05) == (True, True)
    assert np.median(drawn) == pytest.approx(0.773, abs=0.005)
    # Perfect scaling is inside the 90 % interval.
    assert np.quantile(drawn, 0.05) == pytest.approx(0.459, abs=0.01)
    assert np.quantile(drawn, 0.95) == pytest.approx(1.009, abs=0.01)


@pytest.mark.parametrize(
    ("elasticity", "median"),
    [
        (None, 0.773),
        (Elasticity(1.0, 10.0), 0.773),  # an error that large says nothing
        (Elasticity(1.0, 0.001), 0.885),  # a normal of mean 0.928 and deviation 0.12, cut at 1
        (Elasticity(0.6, 0.001), 0.541),
        (Elasticity(1.0, 0.1), 0.857),
    ],
)
def test_twice_the_ranks_gain_no_more_than_half_of_the_tokens_would(
    elasticity: Elasticity | None, median: float
) -> None:
    drawn = exponents_from_steps(np.random.default_rng(0), 5_000, elasticity)
    assert drawn[0] == pytest.approx(median, abs=0.01)
    assert np.median(drawn) == pytest.approx(drawn[0], abs=0.01)
    if elasticity is not None and elasticity.error < 0.01:
        assert drawn.max() <= elasticity.value + 0.01


@pytest.mark.parametrize(("gpus", "seen"), [(1, False), (2, True), (3, True), (8, True), (16, True), (17, False)])
def test_training_is_seen_between_the_numbers_of_gpus_that_steps_were_seen_at(gpus: int, seen: bool) -> None:
    others = [replace(steps(20), gpus=count) for count in (2, 16)]
    found = fit_training_rate(steps(20), np.random.default_rng(1), others=others)
    assert found.has_seen(gpus) == seen


def test_the_true_time_of_a_step_lies_in_nine_of_ten_intervals() -> None:
    inside = 0
    for seed in range(100):
        found = fit_training_rate(steps(40, noise=0.03, seed=seed), np.random.default_rng(seed))
        seconds = drawn(found).overhead_s + 1e6 / (8 * drawn(found).tokens_per_gpu_s)
        low_s, high_s = np.quantile(seconds, [0.05, 0.95])
        inside += bool(low_s <= 5.0 + 1e6 / 24_000 <= high_s)
    # 90 expected, and 80 is more than three standard deviations below.
    assert inside >= 80


@pytest.mark.parametrize(("elasticity", "says_something"), [(0.11, True), (0.09, False)])
def test_a_step_grows_with_its_tokens_from_an_elasticity_of_a_tenth(elasticity: float, says_something: bool) -> None:
    tokens = np.linspace(0.95e6, 1.05e6, 40)
    found = fit(RunSteps(8, tokens, 10.0 * (tokens / 1e6) ** elasticity))
    assert found.trainer.overhead_s > 0.0
    assert (found.trainer.scaling_exponent > 0.85) == says_something


@pytest.mark.parametrize(
    ("given", "is_flat"),
    [
        (replace(steps(60), seconds=steps(60, overhead_s=10.0, spread=0.0).seconds), True),
        (steps(60, overhead_s=0.0), False),
        (steps(60, overhead_s=500.0), False),  # the overhead shows
        (steps(60, spread=0.0), False),
        (steps(60, spread=0.01, noise=0.05), False),
    ],
    ids=["flat", "in proportion", "overhead", "all alike", "more noise than spread"],
)
def test_steps_are_flat_where_their_tokens_vary_and_their_time_does_not(given: RunSteps, is_flat: bool) -> None:
    assert fit(given).is_flat == is_flat
