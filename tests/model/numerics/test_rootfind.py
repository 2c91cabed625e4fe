"""Roots of one function: where it changes sign, to within what was asked."""

import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlscope.model.numerics.rootfind import root


@pytest.mark.parametrize(
    ("function", "low", "high", "expected"),
    [
        (lambda x: x**3 - 2 * x - 5, 2.0, 3.0, 2.0945514815423265),
        (lambda x: math.exp(x) - 1e-9, -50.0, 3.0, math.log(1e-9)),
        (lambda x: math.tanh(50 * (x - 0.3)), -10.0, 10.0, 0.3),
        (lambda x: (x - 1) ** 9, -3.0, 2.5, 1.0),
        (lambda x: 1.0 if x > 0.1 else -1.0, 0.0, 1.0, 0.1),
        (lambda x: x - 4.0, 4.0, 5.0, 4.0),
        (lambda x: 5.0 - x, 4.0, 5.0, 5.0),
    ],
    ids=[
        "cubic",
        "far along an exponential",
        "steep",
        "flat at its root",
        "a jump",
        "at the low end",
        "at the high end",
    ],
)
def test_a_root_is_found_to_within_the_tolerance(
    function: Callable[[float], float], low: float, high: float, expected: float
) -> None:
    assert root(function, low, high, tolerance=1e-9) == pytest.approx(expected, abs=1e-9, rel=1e-15)


@given(at=st.floats(0.01, 100.0), power=st.sampled_from([1.0, 0.5, 3.0]))
def test_a_root_is_found_to_rounding_where_no_error_is_allowed(at: float, power: float) -> None:
    found = root(lambda x: x**power - at**power, 0.0, 1000.0, tolerance=0.0)
    assert found == pytest.approx(at, rel=1e-14)


def test_one_sign_at_both_ends_is_refused() -> None:
    with pytest.raises(ValueError, match="one sign at both ends"):
        root(lambda x: x**2 + 1.0, -1.0, 2.0, tolerance=1e-9)
