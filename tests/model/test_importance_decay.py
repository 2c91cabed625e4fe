"""Effective sample sizes by staleness, and the law through them."""

import numpy as np
import pytest

from rlscope.model.importance_decay import effective_sample_ratio, fit_importance_decay

AGES = np.array([0, 1, 2, 3, 4])
TOKENS = np.array([500, 400, 300, 200, 100])


def moments(variances: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Sums of the weights and their squares when E[w] = 1 and E[w^2] = exp(variance)."""
    return TOKENS.astype(float), TOKENS * np.exp(variances)


def test_equal_weights_are_worth_all_and_one_weight_is_worth_one() -> None:
    assert effective_sample_ratio([4, 4], [8.0, 3.0], [16.0, 9.0]).tolist() == [1.0, 0.25]


@pytest.mark.parametrize(
    ("variances", "law", "at_two"),
    [(0.1 * AGES, "random_walk", np.exp(-0.2)), (0.1 * AGES**2, "ballistic", np.exp(-0.4))],
)
def test_the_law_that_fits_is_chosen_with_its_variance(variances: np.ndarray, law: str, at_two: float) -> None:
    found = fit_importance_decay(AGES, TOKENS, *moments(variances))
    assert found is not None
    assert (found.law, found.version_variance) == (law, pytest.approx(0.1))
    assert found.misfit_ratio == pytest.approx(0.0, abs=1e-12)
    assert found.effective_ratio([0.0, 1.0]) == pytest.approx([1.0, np.exp(-0.1)])
    assert found.effective_ratio(2.0) == pytest.approx(at_two)


def test_weights_drawn_from_a_random_walk_are_worth_what_the_law_says() -> None:
    rng = np.random.default_rng(0)
    drawn = [np.exp(rng.normal(-0.05 * age, np.sqrt(0.1 * age), 20_000)) for age in AGES]
    found = fit_importance_decay(AGES, [20_000] * 5, [w.sum() for w in drawn], [(w**2).sum() for w in drawn])
    assert found is not None
    assert (found.law, found.version_variance) == ("random_walk", pytest.approx(0.1, rel=0.05))


def test_a_mixture_is_worth_less_than_the_mean_of_its_ages() -> None:
    found = fit_importance_decay(AGES, TOKENS, *moments(0.5 * AGES))
    assert found is not None
    assert found.mixed_effective_ratio([0, 4], [1, 1]) == pytest.approx(2 / (1 + np.exp(2)))
    assert found.mixed_effective_ratio([2], [7]) == pytest.approx(np.exp(-1))


@pytest.mark.parametrize(
    ("ages", "tokens"), [([0, 1], [5, 5]), ([0, 1, 2], [5, 5, 0]), ([], [])], ids=["one age", "no tokens", "nothing"]
)
def test_one_age_above_zero_makes_no_law(ages: list[int], tokens: list[int]) -> None:
    sums = np.array(tokens, dtype=float)
    assert fit_importance_decay(ages, tokens, np.maximum(sums, 1), np.maximum(2 * sums, 1)) is None


def test_weights_that_do_not_spread_make_no_law() -> None:
    assert fit_importance_decay(AGES, TOKENS, *moments(np.zeros(5))) is None
