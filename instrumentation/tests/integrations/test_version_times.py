import pytest
from rlscope_otel.integrations.versions import VersionTimes

# Four tokens from 100 to 500: one each at 200, 300, 400 and 500.
START_NS, END_NS, TOKENS = 100, 500, 4


def runs_of(*changes: tuple[int, int]) -> list[tuple[int, int, int]]:
    times = VersionTimes()
    for seen_ns, version in changes:
        times.note(seen_ns, version)
    return times.runs(START_NS, END_NS, TOKENS)


@pytest.mark.parametrize(
    ("change_ns", "old_tokens"), [(101, 0), (200, 0), (201, 1), (300, 1), (301, 2), (500, 3), (501, 4)]
)
def test_a_token_at_the_moment_of_a_change_or_after_it_is_of_the_new_version(change_ns, old_tokens):
    expected = [(3, 0, old_tokens), (4, old_tokens, TOKENS)]
    assert runs_of((50, 3), (change_ns, 4)) == [run for run in expected if run[1] < run[2]]


@pytest.mark.parametrize(
    ("changes", "runs"),
    [
        ([(50, 3)], [(3, 0, 4)]),
        ([(0, 1), (250, 2), (260, 3), (450, 5)], [(1, 0, 1), (3, 1, 3), (5, 3, 4)]),
        # A version that is seen again is no change.
        ([(0, 1), (250, 1), (350, 2)], [(1, 0, 2), (2, 2, 4)]),
    ],
)
def test_a_request_has_a_run_for_each_version_that_gave_it_tokens(changes, runs):
    assert runs_of(*changes) == runs


def test_a_request_without_time_is_of_the_version_at_its_end_and_one_without_tokens_or_a_version_of_none():
    times = VersionTimes()
    assert times.runs(START_NS, END_NS, TOKENS) == []
    times.note(0, 1)
    times.note(500, 2)
    assert times.runs(START_NS, END_NS, 0) == []
    assert times.runs(500, 500, 3) == [(2, 0, 3)]
