"""Staleness of tokens in steady state, in closed form, for engines that take new weights in flight.

A token's staleness counts the steps between sampling it and training on it. With a constant period T it is floor(y - U)
+ 1, where U is uniform in 0..1 and y = (tokens until its group is complete) * versions_per_token + offset: so
P(staleness >= n) = clip(y - n + 1, 0, 1), with mean y. Unless stated otherwise, the equations are own derivations from
that. Members of a group are assumed to start together and to be independent, or as alike as their measured tail says.
Not covered: periods and loads that vary, which lengthen the tails (a 99th percentile can be several times the mean),
queues that grow, and caps; these need the event simulator.
"""

import math
from bisect import bisect_left
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt

from rlscope.model.arrays import Flags, Reals
from rlscope.model.lengths import LengthLaw

_MOST_VERSIONS: Final = 100_000
"""Versions up to which a percentile is searched one by one; beyond, by bisection."""


@dataclass(frozen=True, slots=True)
class StalenessTerms:
    """Quantities that determine the staleness of every token of a layout."""

    versions_per_token: float
    """Versions published while a sample generates one token: C / (samples per step * mean length), whatever the latency
    (Little 1961)."""
    offset_versions: float
    """Mean staleness of the last token of a sample that completes its group: its wait in the queue, and the version
    that is in progress when it is sampled."""
    environment_versions: float = 0.0
    """Versions published during a sample's waits for its environment; counted for all its tokens, as if the wait came
    last, which gives the upper limit."""

    @property
    def constant_versions(self) -> float:
        """Versions added to the staleness of every token."""
        return self.offset_versions + self.environment_versions

    def scaled(self, factor: float) -> "StalenessTerms":
        """Return the terms with every age multiplied by a factor."""
        ages = (self.versions_per_token, self.offset_versions, self.environment_versions)
        return StalenessTerms(*(factor * each for each in ages))


def token_mean(terms: StalenessTerms, lengths: LengthLaw, group_size: int) -> float:
    """Mean staleness over trained tokens, versions: E[L max - L^2 / 2] / E[L] tokens until the group is complete.

    For groups of one it is (1 + cv^2) / 2 mean lengths.
    """
    return mean_tokens_to_group_end(lengths, group_size) * terms.versions_per_token + terms.constant_versions


def maximum(terms: StalenessTerms, lengths: LengthLaw) -> int:
    """Maximum number of versions that the first token of the longest possible sample can be behind."""
    return max(math.ceil(lengths.max_tokens * terms.versions_per_token + terms.constant_versions), 0)


def updates_at_least(terms: StalenessTerms, tokens_to_group_end: LengthLaw, least: npt.ArrayLike) -> Reals:
    """P(staleness >= n) for every n of `least`, n >= 1.

    tokens_to_group_end: tokens until the group is complete; `oldest_token_law` for samples by their oldest token.
    """
    behind = np.asarray(least, dtype=np.float64) - 1.0 - terms.constant_versions
    return clipped_mean(tokens_to_group_end, terms.versions_per_token, behind)


def clipped_mean(law: LengthLaw, versions_per_token: Reals | float, behind: Reals) -> Reals:
    """E[clip(L * versions_per_token - behind, 0, 1)]; at a rate of 0 it is clip(-behind, 0, 1)."""
    rate = np.maximum(versions_per_token, np.finfo(np.float64).tiny)

    def excess(versions: Reals) -> Reals:
        """E[max(L * rate - versions, 0)]; below 0 nothing is cut off."""
        inside = rate * law.excess_tokens(np.minimum(np.maximum(versions, 0.0) / rate, law.max_tokens))
        return np.where(versions < 0.0, law.mean_tokens * rate - versions, inside)

    return np.clip(excess(behind) - excess(behind + 1.0), 0.0, 1.0)


def percentile(terms: StalenessTerms, tokens_to_group_end: LengthLaw, q: float) -> int:
    """The smallest staleness that at least q (0..1) of the tokens, or samples, do not exceed."""
    most = max(math.ceil(tokens_to_group_end.max_tokens * terms.versions_per_token + terms.constant_versions), 0)

    def is_within(versions: npt.ArrayLike) -> Flags:
        return 1.0 - updates_at_least(terms, tokens_to_group_end, versions) >= q - 1e-12

    if most > _MOST_VERSIONS:
        # P(staleness >= n) falls with n.
        return bisect_left(range(most), 1, key=lambda versions: int(is_within(versions + 1)))
    within = np.flatnonzero(is_within(np.arange(1, most + 1)))
    return int(within[0]) if within.size else most


@lru_cache(maxsize=8)
def oldest_token_law(lengths: LengthLaw, group_size: int) -> LengthLaw:
    """Tokens from the start of a sample until its group is complete: the distribution of the longest member.

    Cached: it is the same for every layout and every draw.
    """
    return lengths.longest_of(lengths.independent_members(group_size))


@lru_cache(maxsize=8)
def mean_tokens_to_group_end(lengths: LengthLaw, group_size: int) -> float:
    """E[L max - L^2 / 2] / E[L], mean over tokens, with L max = L max(L, longest of the others).

    Cached like `oldest_token_law`.
    """
    others = lengths.longest_of(max(lengths.independent_members(group_size) - 1.0, 0.0))
    longest = lengths.support + others.excess_tokens(lengths.support)
    products = lengths.support * (longest - lengths.support / 2.0)
    return float((lengths.probabilities * products).sum()) / lengths.mean_tokens
