"""What whole groups say of their lengths."""

import pytest

from rlscope.model.lengths import measure_groups


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
