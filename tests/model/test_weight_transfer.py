"""The published times of transfers, beside those that they were taken from."""

import pytest

from rlscope.model.weight_transfer import published_transfer_s


@pytest.mark.parametrize(
    ("size_bytes", "published_s"), [(1e9, 0.15), (61e9, 0.74), (212e9, 3.47), (470e9, 6.22), (1030e9, 14.36)]
)
def test_the_line_is_within_1_4_of_each_published_transfer(size_bytes: float, published_s: float) -> None:
    assert published_s / 1.4 <= published_transfer_s(size_bytes) <= published_s * 1.4


def test_below_1_gb_nothing_is_published() -> None:
    assert published_transfer_s(1e9 - 1) is None
