import numpy as np
import pytest

from rlscope.model.decode.measurements import DecodePoints, Grade, Visited


def visited(running: list[float], context_tokens: float | None, rows: float | list[float] = 100.0) -> Visited:
    kv_tokens = None if context_tokens is None else np.array(running) * context_tokens
    return Visited.of(DecodePoints.of(running, 1e-2, rows=rows, kv_tokens=kv_tokens))


# Visited: 17.6 to 60.8 requests, a context of 1000; half as much again in either direction is near.
@pytest.mark.parametrize(
    ("running", "kv_tokens", "grade"),
    [
        (32, None, "measured"),
        (35.1, 35_100, "measured"),
        (35.3, 35_300, "interpolated"),
        (16, 16 * 1249, "measured"),
        (16, 16 * 1251, "interpolated"),
        (16, 16 * 1499, "interpolated"),
        (16, 16 * 1501, "extrapolated"),
        (16, 16 * 668, "interpolated"),
        (16, 16 * 665, "extrapolated"),
        (91.1, 91_100, "interpolated"),
        (91.3, 91_300, "extrapolated"),
        (11.74, 11_740, "interpolated"),
        (11.72, 11_720, "extrapolated"),
    ],
)
def test_the_grade_falls_with_the_distance_from_what_was_visited(
    running: float, kv_tokens: float | None, grade: Grade
) -> None:
    assert visited([16.0, 32.0, 64.0], 1000).grade(running, kv_tokens) == grade


def test_one_batch_size_is_measured_and_the_rest_extrapolated() -> None:
    one = visited([32.0, 33.0], 1000)
    assert one.one_batch_size
    assert one.grade(32, 32_000) == "measured"
    assert one.grade(38, 38_000) == "extrapolated"
    assert one.grade(64, 64_000) == "extrapolated"


@pytest.mark.parametrize(("high", "one"), [(119.0, True), (124.0, False)])
def test_batches_that_differ_by_a_fifth_are_two_sizes(high: float, one: bool) -> None:
    assert visited([100.0, high], None).one_batch_size is one


def test_without_resident_tokens_no_context_is_measured() -> None:
    blind = visited([16.0, 32.0, 64.0], None)
    assert not blind.knows_context
    assert blind.grade(32, None) == "measured"
    assert blind.grade(32, 32_000) == "interpolated"
    assert blind.grade(320, 32_000) == "extrapolated"


def test_a_cell_of_few_rows_is_no_visit_unless_all_are() -> None:
    assert visited([16.0, 32.0], 1000, rows=[4.0, 3.9]).batch_high == 16
    assert visited([16.0, 32.0], 1000, rows=[3.0, 3.0]).batch_high > 30


def test_resident_tokens_that_follow_the_batch_are_told_from_those_that_do_not() -> None:
    assert visited([16.0, 32.0, 64.0], 1000).kv_follows_batch
    points = DecodePoints.of([16, 16, 64, 64], 1e-2, rows=100, kv_tokens=[16_000, 32_000, 64_000, 128_000])
    spread = Visited.of(points)
    assert spread is not None and not spread.kv_follows_batch
    assert not visited([16.0, 32.0], None).kv_follows_batch
