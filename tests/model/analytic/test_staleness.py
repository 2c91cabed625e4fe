"""Closed forms of staleness, against exact cases and against tokens drawn one by one."""

import numpy as np
import pytest

from rlscope.model.analytic.staleness import (
    StalenessTerms,
    maximum,
    oldest_token_law,
    percentile,
    token_mean,
    updates_at_least,
)
from rlscope.model.lengths import GroupLengths, LengthLaw
from tests.model.golden_system import LENGTHS

CONSTANT = LengthLaw(np.array([100.0]), np.array([1.0]))
TERMS = StalenessTerms(versions_per_token=0.001, offset_versions=0.6, environment_versions=0.1)


def test_tokens_of_groups_of_one_see_half_of_a_length_biased_sample() -> None:
    expected = LENGTHS.mean_tokens * (1 + LENGTHS.cv2) / 2 * 0.001 + 0.7
    assert token_mean(TERMS, LENGTHS, 1) == pytest.approx(expected)


@pytest.mark.parametrize(("offset", "most"), [(0.5, 3), (0.9, 3), (1.0, 3), (1.01, 4)])
def test_the_maximum_is_reached_where_the_longest_sample_starts_at_the_worst_moment(offset: float, most: int) -> None:
    assert maximum(StalenessTerms(0.02, offset), CONSTANT) == most


def test_an_offset_moves_the_distribution() -> None:
    terms = StalenessTerms(0.023, offset_versions=0.9)
    assert updates_at_least(terms, CONSTANT, [1, 3, 4, 5]) == pytest.approx([1.0, 1.0, 0.2, 0.0])


def test_samples_that_generate_nothing_between_versions_are_as_old_as_the_queue() -> None:
    assert updates_at_least(StalenessTerms(0.0, 0.6), LENGTHS, [1, 2]) == pytest.approx([0.6, 0.0])
    assert updates_at_least(StalenessTerms(0.0, 1.6), LENGTHS, [1, 2, 3]) == pytest.approx([1.0, 0.6, 0.0])


@pytest.mark.parametrize(("q", "staleness"), [(0.0, 0), (0.6, 2), (0.7, 2), (0.71, 3), (1.0, 3)])
def test_a_percentile_is_the_smallest_staleness_that_so_many_do_not_exceed(q: float, staleness: int) -> None:
    assert percentile(StalenessTerms(0.023, 0.0), CONSTANT, q) == staleness


def test_tokens_and_samples_drawn_one_by_one_are_as_old_as_the_forms_say() -> None:
    # Groups of 4 that start at a uniform phase and tokens at their own place: staleness floor(y - U) + 1.
    rng = np.random.default_rng(5)
    lengths = LENGTHS.draw(rng, (40_000, 4))
    longest, phase = lengths.max(axis=1), rng.random(40_000)
    place = rng.random((40_000, 4)) * lengths
    ahead = longest[:, None] - place
    tokens_stale = np.floor(ahead * 0.001 + 0.7 - rng.random((40_000, 4))) + 1
    samples_stale = np.floor(longest * 0.001 + 0.7 - phase) + 1
    weights = lengths / lengths.sum()
    versions = np.arange(1, 9)
    samples_above = [float((samples_stale >= n).mean()) for n in versions]
    # Four standard errors of a share of 40,000 groups are at most 0.01.
    assert updates_at_least(TERMS, oldest_token_law(LENGTHS, 4), versions) == pytest.approx(samples_above, abs=0.01)
    assert token_mean(TERMS, LENGTHS, 4) == pytest.approx(float((weights * tokens_stale).sum()), rel=0.01)


def test_a_measured_group_tail_shortens_the_wait() -> None:
    measured = LengthLaw(LENGTHS.support, LENGTHS.probabilities, groups=GroupLengths(8, 1.2, correlation_ratio=0.8))
    assert oldest_token_law(measured, 8).mean_tokens == pytest.approx(1.2 * LENGTHS.mean_tokens, rel=1e-6)
    assert token_mean(TERMS, measured, 8) < token_mean(TERMS, LENGTHS, 8)
