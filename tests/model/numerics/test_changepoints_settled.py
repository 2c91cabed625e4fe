"""Whether a series drifts."""

import numpy as np
import pytest

from rlscope.model.numerics.changepoints import drift


def noise(count: int, seed: int, spread: float = 0.05) -> np.ndarray:
    return spread * np.random.default_rng(seed).standard_normal(count)


def test_of_steady_series_hardly_any_drifts() -> None:
    found = [drift(np.exp(noise(60, seed, spread=0.2))) for seed in range(200)]
    # Two in a hundred; 12 is three standard deviations above.
    assert sum(each.drifts for each in found) <= 12


@pytest.mark.parametrize(("growth", "drifts"), [(1.0499, False), (1.0501, True), (0.9501, False), (0.9499, True)])
def test_a_change_of_less_than_five_per_cent_is_no_drift(growth: float, drifts: bool) -> None:
    found = drift(growth ** np.linspace(0.0, 1.0, 50))
    assert (found.drifts, found.change_ratio) == (drifts, pytest.approx(growth - 1))


@pytest.mark.parametrize("series", [[1.0] * 9, [1.0] * 10 + [0.0], [1.0] * 10 + [-1.0]])
def test_too_few_steps_or_a_value_that_has_no_logarithm_say_nothing(series: list[float]) -> None:
    assert drift(series) is None
    assert drift([1.0] * 10) is not None
