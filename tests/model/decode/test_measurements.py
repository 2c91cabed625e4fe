import numpy as np
import pytest

from rlscope.model.decode.measurements import DecodePoints, Grade, Visited, gather


def test_what_says_nothing_of_decoding_is_left_out() -> None:
    cells = gather(
        DecodePoints.of(
            running=[0, 8, 8, 8, 8],
            pass_s=[1e-2, float("nan"), 0.0, 2e-2, 1e-2],
            rows=[1, 2, 4, 16, 1000],
            prefill_tokens=[0, 0, 0, 300, 0],
        )
    )
    assert (cells.pass_s.tolist(), cells.rows.tolist()) == ([1e-2], [1000])


def test_stalls_show_in_the_mean_and_not_in_what_is_typical() -> None:
    points = DecodePoints.of([8] * 6, [1e-2] * 5 + [9e-2], typical_s=1e-2, rows=[10, 10, 10, 10, 10, 50])
    cells = gather(points)
    assert cells.typical_s == pytest.approx([1e-2])
    assert cells.pass_s == pytest.approx([5e-2])
    assert cells.stall_ratio == pytest.approx(5)
    assert gather(DecodePoints.of([8, 9], [1e-2, 2e-2])).stall_ratio == pytest.approx(1)


def test_passes_with_a_little_prefill_are_let_in_only_when_there_are_hardly_others() -> None:
    few = DecodePoints.of([10, 10, 10], [1e-2, 1e-2, 2e-2], rows=[2, 97, 1], prefill_tokens=[0, 1.0, 1.1])
    more = DecodePoints.of([10, 10, 10], [1e-2, 1e-2, 2e-2], rows=[3, 96, 1], prefill_tokens=[0, 1.0, 1.1])
    assert (gather(few).rows.sum(), gather(more).rows.sum()) == (99, 3)


def test_an_outlying_measurement_is_left_out_where_the_cell_can_judge_it() -> None:
    judged = gather(DecodePoints.of([8] * 5, [1e-2, 1e-2, 1e-2, 1e-2, 1e-1]))
    unjudged = gather(DecodePoints.of([8] * 4, [1e-2, 1e-2, 1e-2, 1e-1]))
    assert judged.pass_s == pytest.approx([1e-2])
    assert unjudged.pass_s == pytest.approx([3.25e-2])


def test_three_and_a_half_deviations_are_not_outlying_yet() -> None:
    inside, outside = 1e-2 * np.exp(0.05 * 3.49), 1e-2 * np.exp(0.05 * 3.51)
    kept = [gather(DecodePoints.of([8] * 6, [1e-2] * 5 + [last])).rows.sum() for last in (inside, outside)]
    assert kept == [6, 5]


@pytest.mark.parametrize(
    ("running", "kv_tokens", "cells"), [([32, 38], None, 1), ([32, 39], None, 2), ([8, 8], [1024, 2048], 2)]
)
def test_batches_of_one_cell_differ_by_less_than_a_fifth_and_hold_similar_tokens(
    running: list[int], kv_tokens: list[int] | None, cells: int
) -> None:
    assert len(gather(DecodePoints.of(running, [1e-2, 1e-2], kv_tokens=kv_tokens))) == cells


@pytest.mark.parametrize(("rows", "kept", "pass_s"), [([51, 49], 51, 1e-2), ([50, 50], 100, 1.5e-2)])
def test_rows_without_resident_tokens_go_when_they_are_the_fewer_and_decide_when_not(
    rows: list[int], kept: int, pass_s: float
) -> None:
    cells = gather(DecodePoints.of([8, 8], [1e-2, 2e-2], rows=rows, kv_tokens=[1024, float("nan")]))
    assert (cells.rows.sum(), not np.isnan(cells.kv_tokens).any()) == (kept, kept == 51)
    assert cells.pass_s == pytest.approx([pass_s])


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
