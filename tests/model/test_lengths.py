"""The law of response lengths: its moments, its cap, unfinished samples, groups, and what-ifs."""

import numpy as np
import pytest

from rlscope.model.lengths import GroupLengths, LengthLaw, independent_members, measure_groups
from tests.model.golden_system import LENGTHS

THREE = LengthLaw(np.array([10.0, 20.0, 40.0]), np.array([0.5, 0.25, 0.25]), max_output_tokens=40)


def points(law: LengthLaw) -> dict[float, float]:
    return dict(zip(law.support.tolist(), np.round(law.probabilities, 12).tolist(), strict=True))


def test_a_lognormal_law_cut_at_its_cap_has_the_moments_of_the_closed_form() -> None:
    assert f"{LENGTHS.mean_tokens:.2f}" == "1791.77"
    assert f"{LENGTHS.second_moment:,.1f}" == "4,540,371.8"
    assert f"{LENGTHS.third_moment:.4e}" == "1.5750e+10"
    assert f"{LENGTHS.capped_ratio:.5f}" == "0.00233"


def test_the_longest_of_a_group_has_the_mean_of_the_integral_over_its_law() -> None:
    # By quadrature of 1 - F(x)^S over 0..8192: 3748.997 tokens for 8 and 8147.849 for 1024.
    assert LENGTHS.group_tail_ratio(8) * LENGTHS.mean_tokens == pytest.approx(3748.997, abs=0.01)
    assert LENGTHS.longest_of(1024).mean_tokens == pytest.approx(8147.849, abs=0.01)


def test_moments_tails_and_quantiles_of_three_points() -> None:
    assert (THREE.mean_tokens, THREE.second_moment, THREE.third_moment) == (20.0, 550.0, 18_500.0)
    assert (THREE.max_tokens, THREE.capped_ratio) == (40.0, 0.25)
    assert THREE.survival([0, 9, 10, 39, 40]).tolist() == [1.0, 1.0, 0.5, 0.25, 0.0]
    assert THREE.excess_tokens([0, 10, 30, 40, 50]).tolist() == [20.0, 10.0, 2.5, 0.0, 0.0]
    assert THREE.quantile([0.0, 0.5, 0.500001, 0.75, 1.0]).tolist() == [10.0, 10.0, 20.0, 20.0, 40.0]


def test_draws_are_whole_tokens_at_least_one_with_the_law_s_mean_and_the_same_for_the_same_seed() -> None:
    drawn = LENGTHS.draw(np.random.default_rng(1), (400, 500))
    assert (drawn.shape, drawn.dtype, drawn.min() >= 1, drawn.max()) == ((400, 500), np.int64, True, 8192)
    standard_error = np.sqrt(LENGTHS.second_moment - LENGTHS.mean_tokens**2) / np.sqrt(drawn.size)
    assert abs(drawn.mean() - LENGTHS.mean_tokens) < 4 * standard_error
    assert (drawn == LENGTHS.draw(np.random.default_rng(1), (400, 500))).all()


def test_a_length_of_zero_is_drawn_as_one_token() -> None:
    law = LengthLaw(np.array([0.0, 1.0]), np.array([0.5, 0.5]))
    assert set(law.draw(np.random.default_rng(0), 50).tolist()) == {1}


@pytest.mark.parametrize(("cap", "last"), [(6, 6.0), (None, 4.0)])
def test_unfinished_samples_count_as_at_least_as_long_as_they_are(cap: int | None, last: float) -> None:
    # Alive after 1: 3/4. After 3, with two left: 3/4 * 1/2. What is left has only been seen unfinished.
    law = LengthLaw.from_samples([1, 2, 3, 4], [True, False, True, False], max_output_tokens=cap)
    assert points(law) == {1.0: 0.25, 3.0: 0.375, last: 0.375}
    assert law.unseen_ratio == pytest.approx(0.375)


def test_a_sample_at_the_cap_has_ended_whatever_it_says() -> None:
    law = LengthLaw.from_samples([3, 8], [True, False], max_output_tokens=8)
    assert (points(law), law.unseen_ratio, law.capped_ratio) == ({3.0: 0.5, 8.0: 0.5}, 0.0, 0.5)


@pytest.mark.parametrize(
    ("law", "expected", "capped_ratio"),
    [
        (THREE.scaled(1.0), {10.0: 0.5, 20.0: 0.25, 40.0: 0.25}, 0.25),
        (THREE.scaled(2.0), {20.0: 0.5, 40.0: 0.5}, 0.5),
        (THREE.scaled(0.5), {5.0: 0.5, 10.0: 0.25, 20.0: 0.25}, 0.0),
        (THREE.with_cap(20), {10.0: 0.5, 20.0: 0.5}, 0.5),
        (THREE.with_cap(80), {10.0: 0.5, 20.0: 0.25, 40.0: 0.25}, 0.0),
    ],
    ids=["as long", "longer", "shorter", "lower cap", "higher cap"],
)
def test_lengths_pile_up_at_the_cap_and_shorter_ones_leave_it(
    law: LengthLaw, expected: dict[float, float], capped_ratio: float
) -> None:
    assert (points(law), law.capped_ratio) == (expected, capped_ratio)


def test_a_tail_measured_on_groups_of_the_size_replaces_the_one_of_independent_members() -> None:
    measured = GroupLengths(group_size=8, tail_ratio=1.5, correlation_ratio=0.5)
    law = LengthLaw(LENGTHS.support, LENGTHS.probabilities, 8192, groups=measured)
    assert law.group_tail_ratio(8) == 1.5
    assert law.group_tail_ratio(4) == LENGTHS.group_tail_ratio(4)
    members = independent_members(law, 8)
    assert law.longest_of(members).mean_tokens == pytest.approx(1.5 * law.mean_tokens, rel=1e-6)
    assert 1.0 < members < 8.0
    assert independent_members(LENGTHS, 8) == 8.0


def test_the_tail_is_the_mean_of_the_longest_over_the_mean_of_all_in_whole_groups_of_the_usual_size() -> None:
    lengths = [10, 20, 30, 40, 99, 99, 7]
    finished = [True, True, True, True, True, False, True]
    measured = measure_groups(lengths, finished, ["a", "a", "b", "b", "c", "c", "d"])
    assert measured.group_size == 2
    assert measured.tail_ratio == pytest.approx(30 / 25)
    # Between groups 2 * (100 + 100) / 1 = 400, within (50 + 50) / 2 = 50.
    assert measured.correlation_ratio == pytest.approx((400 - 50) / (400 + 50))


@pytest.mark.parametrize(
    ("lengths", "finished", "groups"),
    [
        ([], [], []),
        ([1, 2], [True, True], ["a", "b"]),
        ([1, 2], [True, True], ["a", "a"]),
        ([1, 2, 3, 4], [True, False, True, False], ["a", "a", "b", "b"]),
    ],
    ids=["nothing", "groups of one", "a single group", "none is whole"],
)
def test_nothing_is_measured_on_fewer_than_two_groups_of_two(
    lengths: list[int], finished: list[bool], groups: list[str]
) -> None:
    assert measure_groups(lengths, finished, groups) is None
