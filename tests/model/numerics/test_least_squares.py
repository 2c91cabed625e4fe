import numpy as np

from rlscope.model.arrays import Counts, Reals
from rlscope.model.numerics.least_squares import Linearized, solve

TIMES = np.linspace(0.0, 4.0, 9)


def decay(vectors: Reals, measured: Reals) -> Linearized:
    """Residuals of a e^(-b t), with next to nothing expected of (log a, log b)."""
    height, rate = np.exp(vectors[:, :1]), np.exp(vectors[:, 1:])
    values = height * np.exp(-rate * TIMES)
    slopes = np.stack([values, -values * rate * TIMES]) / 0.01
    plain_slopes = 1e-3 * np.broadcast_to(np.eye(2)[:, None, :], (2, len(vectors), 2))
    return Linearized(1e-3 * vectors, (values - measured) / 0.01, plain_slopes, slopes)


def solved(measured: Reals) -> Reals:
    def problems(vectors: Reals, numbers: Counts) -> Linearized:
        return decay(vectors, measured[numbers])

    return np.exp(solve(problems, np.zeros((len(measured), 2)))[0])


def test_problems_solved_together_are_solved_as_each_is_alone() -> None:
    truths = np.array([[2.0, 0.5], [0.3, 1.5], [1.0, 1.0]])
    measured = truths[:, :1] * np.exp(-truths[:, 1:] * TIMES)
    together = solved(measured)
    np.testing.assert_allclose(together, truths, rtol=1e-3)
    np.testing.assert_allclose(together, np.concatenate([solved(each[None]) for each in measured]), rtol=1e-9)


def test_one_residual_far_off_is_outvoted() -> None:
    measured = 2.0 * np.exp(-0.5 * TIMES)
    measured[4] *= 3.0
    np.testing.assert_allclose(solved(measured[None])[0], [2.0, 0.5], rtol=0.01)


def test_a_last_bit_of_the_measurements_moves_the_solution_by_no_more() -> None:
    measured = (2.0 * np.exp(-0.5 * TIMES) + 0.01 * np.sin(7 * TIMES))[None]
    np.testing.assert_allclose(solved(measured * (1 + 1e-15)), solved(measured), rtol=1e-12)
