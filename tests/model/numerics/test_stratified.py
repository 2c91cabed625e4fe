"""Stratified errors."""

import numpy as np
import pytest

from rlscope.model.numerics.stratified import normals


def test_errors_are_the_middles_of_equally_likely_parts_of_the_normal_distribution() -> None:
    # Quantiles 1/8, 3/8, 5/8 and 7/8.
    assert sorted(normals(np.random.default_rng(1), 4)) == pytest.approx([-1.1503, -0.3186, 0.3186, 1.1503], abs=1e-4)


def test_every_seed_gives_the_same_errors_in_another_order() -> None:
    one, other = (normals(np.random.default_rng(seed), 60).tolist() for seed in (1, 2))
    assert sorted(one) == sorted(other)
    assert one != other
