"""The normal law and Student's, against scipy's."""

import numpy as np
import pytest
from scipy import special

from rlscope.model.numerics.normal import log_normal_share, normal_quantile, normal_share, student_quantile


def test_shares_of_the_normal_law_are_those_of_scipy_far_into_both_tails() -> None:
    deviations = np.linspace(-37.0, 37.0, 4001)
    # e^(-x^2) carries the rounding of its exponent.
    np.testing.assert_allclose(normal_share(deviations), special.ndtr(deviations), rtol=2e-13)
    assert normal_share([-np.inf, 0.0, np.inf]).tolist() == [0.0, pytest.approx(0.5, abs=1e-15), 1.0]
    assert np.isnan(normal_share(np.nan))


def test_the_logarithm_of_a_share_is_exact_where_the_share_is_0_to_rounding() -> None:
    deviations = np.concatenate([-np.geomspace(1e-6, 1e5, 2001), np.linspace(0.0, 30.0, 200)])
    np.testing.assert_allclose(log_normal_share(deviations), special.log_ndtr(deviations), rtol=3e-15, atol=1e-300)


def test_quantiles_turn_shares_back_and_keep_their_shape() -> None:
    shares = np.array([[0.0, 1e-12, 0.3], [0.5, 0.999, 1.0]])
    np.testing.assert_allclose(normal_quantile(shares), special.ndtri(shares), rtol=3e-15)
    assert normal_quantile(0.975).shape == ()


@pytest.mark.parametrize("freedom", [1.0, 1.5, 2.0, 3.7, 30.0, 100_000.0])
@pytest.mark.parametrize("share", [0.9, 0.95, 0.975, 0.995])
def test_students_quantile_is_that_of_scipy_for_any_degrees_of_freedom(freedom: float, share: float) -> None:
    assert student_quantile(freedom, share) == pytest.approx(float(special.stdtrit(freedom, share)), rel=1e-9)
