import numpy as np
import pytest

from rlscope.model.arrays import Reals
from rlscope.model.numerics.mcmc import draw, maximise


def test_the_maximum_is_found_and_kept_within_bounds() -> None:
    def density(vectors: Reals) -> Reals:
        return -((vectors[..., 0] - 2) ** 2) - 10 * (vectors[..., 1] + 1) ** 2

    starts = np.array([[0.0, 1.0], [5.0, 5.0]])
    free = maximise(density, starts, np.array([-np.inf, -np.inf]))
    bounded = maximise(density, starts, np.array([-np.inf, 0.0]))
    np.testing.assert_allclose(free, [2, -1], atol=1e-4)
    np.testing.assert_allclose(bounded, [2, 0], atol=1e-4)


def test_a_bound_that_holds_moves_the_other_parameter_with_it() -> None:
    def density(vectors: Reals) -> Reals:
        first, second = vectors[..., 0] - 1, vectors[..., 1] + 1
        return -(first**2 + second**2 + 1.9 * first * second) / 2

    # At second = 0 the slope along first is zero where first - 1 = -0.95.
    found = maximise(density, np.array([[3.0, 3.0]]), np.array([-np.inf, 0.0]))
    np.testing.assert_allclose(found, [0.05, 0], atol=1e-2)


@pytest.mark.parametrize("seed", [0, 2, 3, 5])
def test_parameters_at_their_bounds_do_not_slow_the_search_for_the_others(seed: int) -> None:
    rng, calls = np.random.default_rng(seed), list[int]()
    factor = rng.standard_normal((8, 8))
    curvature, centre = factor @ factor.T + 0.05 * np.eye(8), rng.standard_normal(8)
    centre[:3] = -2.0

    def density(vectors: Reals) -> Reals:
        calls.append(len(vectors))
        away = vectors - centre
        return -np.einsum("ij,jk,ik->i", away, curvature, away)

    found = maximise(density, np.ones((1, 8)), np.array([*[0.0] * 3, *[-np.inf] * 5]))
    slopes = -2 * curvature @ (found - centre)
    assert any(found[:3] == 0.0) and all(found[:3] >= 0.0)
    # Slopes are left only where a bound is in the way.
    slopes[:3] = np.where(found[:3] == 0.0, np.maximum(slopes[:3], 0.0), slopes[:3])
    np.testing.assert_allclose(slopes, 0.0, atol=0.05)
    assert len(calls) <= 40


def test_the_better_of_two_peaks_is_chosen() -> None:
    def density(vectors: Reals) -> Reals:
        at = vectors[..., 0]
        return np.logaddexp(-((at + 3) ** 2), 1 - (at - 3) ** 2)

    np.testing.assert_allclose(maximise(density, np.array([[-2.0], [2.0]]), np.array([-np.inf])), [3], atol=1e-4)


def test_draws_have_the_moments_of_the_density() -> None:
    covariance = np.array([[1.0, 0.9], [0.9, 1.0]])
    precision = np.linalg.inv(covariance)

    def density(vectors: Reals) -> Reals:
        centred = vectors - np.array([3.0, -1.0])
        return -np.einsum("wi,ij,wj->w", centred, precision, centred) / 2

    rng = np.random.default_rng(5)
    drawn = draw(density, rng.standard_normal((32, 2)), rng, settle=300, thin=10, count=8000)
    # 8000 draws, some ten steps of autocorrelation apart each: a standard error of about 0.03.
    np.testing.assert_allclose(drawn.mean(axis=0), [3, -1], atol=0.12)
    np.testing.assert_allclose(np.cov(drawn.T), covariance, atol=0.15)


def test_draws_stay_where_the_density_is_defined() -> None:
    def density(vectors: Reals) -> Reals:
        return np.where(vectors[..., 0] >= 0, -vectors[..., 0], -np.inf)

    rng = np.random.default_rng(5)
    drawn = draw(density, np.abs(rng.standard_normal((8, 1))), rng, settle=100, thin=5, count=4000)
    assert drawn.min() >= 0
    np.testing.assert_allclose(drawn.mean(), 1, atol=0.12)
