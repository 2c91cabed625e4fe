"""Which files are copied as one: whatever is flushed, merged and copied when, no file in the store overlaps in part."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rlscope_otel.copied_files import grouped, outermost, whole
from rlscope_otel.schema import FileNumbers


def files(*ranges: tuple[int, int]) -> list[FileNumbers]:
    return [FileNumbers("w0", first, last) for first, last in ranges]


def groups(local: list[FileNumbers], stored: list[FileNumbers], max_bytes: int = 1000) -> list[tuple[int, int]]:
    made = grouped(dict.fromkeys(local, 10), stored, max_bytes)
    assert [file for group in made for file in group] == local
    return [whole(group)[1:] for group in made]


def test_merged_files_are_copied_as_they_are_and_the_small_ones_since_as_one() -> None:
    assert groups(files((1, 4), (5, 8), (9, 9), (10, 10), (11, 11)), []) == [(1, 4), (5, 8), (9, 11)]


@pytest.mark.parametrize(("max_bytes", "expected"), [(30, [(1, 3), (4, 4)]), (29, [(1, 2), (3, 4)])])
def test_small_files_are_copied_as_one_as_long_as_they_fit(max_bytes: int, expected: list[tuple[int, int]]) -> None:
    assert groups(files((1, 1), (2, 2), (3, 3), (4, 4)), [], max_bytes) == expected


def test_files_across_a_missing_number_are_not_made_one() -> None:
    assert groups(files((1, 1), (3, 3)), []) == [(1, 1), (3, 3)]


def test_a_file_that_reaches_beyond_what_was_merged_since_is_followed_by_one_that_begins_at_its_end() -> None:
    # The store has 1 to 5; 1 to 4 were merged meanwhile, and 6 was flushed: 5 to 6 would overlap it in part.
    assert groups(files((1, 4), (5, 5), (6, 6)), files((1, 5))) == [(1, 4), (5, 5), (6, 6)]


def test_a_file_whose_end_was_merged_into_the_next_one_is_copied_again_with_all_of_it() -> None:
    assert groups(files((1, 1), (2, 5), (6, 6)), files((1, 3))) == [(1, 5), (6, 6)]


def test_a_file_that_lies_inside_another_one_is_not_copied() -> None:
    assert outermost(files((3, 3), (1, 4), (2, 2), (5, 5), (1, 2))) == files((1, 4), (5, 5))


def laminar(one: FileNumbers, other: FileNumbers) -> bool:
    apart = one.last < other.first or other.last < one.first
    inside = other.first <= one.first and one.last <= other.last
    outside = one.first <= other.first and other.last <= one.last
    return apart or inside or outside


@given(
    st.lists(st.tuples(st.sampled_from(["flush", "merge", "copy"]), st.integers(0, 9), st.integers(2, 6)), max_size=60)
)
def test_whatever_happens_between_two_copies_their_files_lie_inside_each_other_or_apart(
    events: list[tuple[str, int, int]],
) -> None:
    local, stored, flushed = list[FileNumbers](), list[FileNumbers](), 0
    for event, place, length in events:
        if event == "flush":
            local += files((flushed + 1, flushed + 1))
            flushed += 1
        elif event == "merge":
            if merged := local[place : place + length]:
                local[place : place + length] = [whole(merged)]
        else:
            wanted = [whole(group) for group in grouped(dict.fromkeys(local, 10), stored, 50)]
            assert all(laminar(new, old) for new in wanted for old in stored)
            assert sum(each.last - each.first + 1 for each in wanted) == flushed
            stored = wanted
