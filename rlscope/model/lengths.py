"""Response lengths: a discrete distribution with an atom at the cap, estimated also from unfinished samples.

The distribution comes from the samples of a run or, before a run, from two or three known figures. It provides moments,
tails, quantiles, the longest of a group, and random lengths, and it can be scaled or cut. A group waits for its longest
member, so the similarity of its members is measured over whole groups. Not covered: prompts, lengths that drift while
they are sampled, groups of a size other than the most common one, groups with a member that never finished (leaving
them out favors short groups), and plans whose lengths are not lognormal below the cap: record a run to use its own
distribution.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import pairwise
from typing import Final, Self

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr, ndtri

from rlscope.model.arrays import Counts, Flags, Reals
from rlscope.model.numerics.rootfind import bisect_condition

_FINEST_STEP_TOKENS: Final = 0.5
"""Finest grid of a parametric distribution, in tokens: it raises the second moment by only 0.02 tokens squared."""
_MOST_POINTS: Final = 65_536
"""Maximum points of a parametric distribution; a longer one has a coarser grid."""
_UNCAPPED_TAIL: Final = 1e-9
"""Mass beyond the last point of a distribution without a cap; it is put on that point."""
_MOST_MEMBERS_RATIO: Final = 4.0
"""Maximum independent members that a measured tail may correspond to, relative to the group size: noise can exceed
independence."""
_BISECTIONS: Final = 30
_LEAST_SIGMA: Final = 1e-3
_MOST_SIGMA: Final = 6.0
"""Maximum sigma of the log length: one response in six is then more than 400 times the median."""


@dataclass(frozen=True, slots=True)
class GroupLengths:
    """Similarity of the lengths within a group, measured over whole groups."""

    group_size: int
    tail_ratio: float
    """Mean of the longest member over the mean of all members, at least 1."""
    correlation_ratio: float
    """Share of the variance of lengths that lies between groups (one-way random effects), at most 1; noise can make it
    negative."""


@dataclass(frozen=True, slots=True, eq=False)
class LengthLaw:
    """A discrete distribution of response lengths. Both arrays are copied and read-only."""

    support: Reals
    """Lengths in tokens, increasing. Whole for observed samples; a parametric distribution has a finer grid."""
    probabilities: Reals
    """Probability of each length; they sum to 1."""
    max_output_tokens: int | None = None
    """Length at which generation is cut; None: no cap."""
    unseen_ratio: float = 0.0
    """Mass beyond every sample seen to finish. It sits on the last point, so actual tails are at least as heavy."""
    groups: GroupLengths | None = None
    """Measurements over whole groups; None: members of a group are assumed to be independent."""
    _below: Reals = field(init=False, repr=False)
    """0, then P(length <= support)."""
    _tokens_below: Reals = field(init=False, repr=False)
    """0, then E[length; length <= support], tokens."""

    def __post_init__(self) -> None:
        support = np.array(self.support, dtype=np.float64)
        probabilities = np.array(self.probabilities, dtype=np.float64)
        probabilities = probabilities / probabilities.sum()
        below = np.minimum(np.cumsum(np.append(0.0, probabilities)), 1.0)
        below[-1] = 1.0
        held = {
            "support": support,
            "probabilities": probabilities,
            "_below": below,
            "_tokens_below": np.cumsum(np.append(0.0, probabilities * support)),
        }
        for name, values in held.items():
            values.flags.writeable = False
            object.__setattr__(self, name, values)

    @classmethod
    def from_samples(
        cls, lengths: npt.ArrayLike, finished: npt.ArrayLike, max_output_tokens: int | None = None
    ) -> Self:
        """Estimate the product-limit distribution of samples, some of them unfinished (Kaplan and Meier 1958).

        lengths: tokens generated so far, up to the cap, one entry per sample, for all samples that started in the
        steady state of the run: samples that finished are biased short. finished: whether each sample ended by itself
        or at the cap. Mass that no finished sample covers goes to the cap, or without a cap to the longest sample
        (Efron 1967), and is kept as `unseen_ratio`.
        """
        tokens = np.asarray(lengths, dtype=np.float64)
        ended = np.asarray(finished, dtype=np.bool_) | (
            tokens == (math.inf if max_output_tokens is None else max_output_tokens)
        )
        support, masses, unseen = _product_limit(tokens, ended)
        if unseen > 0.0:
            support, masses = np.append(support, max_output_tokens or tokens.max()), np.append(masses, unseen)
        return cls(*_merged(support, masses), max_output_tokens, unseen_ratio=unseen)

    @classmethod
    def lognormal(cls, median_tokens: float, sigma: float, max_output_tokens: int | None = None) -> Self:
        """Build a lognormal distribution cut at the cap, on a grid of bin midpoints; sigma: sd of the log length."""
        uncapped_tokens = median_tokens * math.exp(sigma * float(ndtri(1.0 - _UNCAPPED_TAIL)))
        last = float(max_output_tokens) if max_output_tokens else uncapped_tokens
        step = _FINEST_STEP_TOKENS * 2.0 ** max(0, math.ceil(math.log2(last / _FINEST_STEP_TOKENS / _MOST_POINTS)))
        edges = np.append(np.arange(0.0, last, step), last)
        with np.errstate(divide="ignore"):
            below = ndtr((np.log(edges) - math.log(median_tokens)) / sigma)
        support = np.append((edges[:-1] + edges[1:]) / 2.0, last)
        return cls(support, np.append(np.diff(below), 1.0 - below[-1]), max_output_tokens)

    @property
    def mean_tokens(self) -> float:
        """Mean E[L], tokens."""
        return float(self._tokens_below[-1])

    @property
    def second_moment(self) -> float:
        """Second moment E[L^2], tokens squared."""
        return float((self.probabilities * self.support**2).sum())

    @property
    def third_moment(self) -> float:
        """Third moment E[L^3], tokens cubed."""
        return float((self.probabilities * self.support**3).sum())

    @property
    def max_tokens(self) -> float:
        """Longest possible length, tokens."""
        return float(self.support[-1])

    @property
    def capped_ratio(self) -> float:
        """Share of the samples that reach the cap, 0..1; 0 without a cap."""
        at_cap = self.max_output_tokens is not None and self.support[-1] >= self.max_output_tokens
        return float(self.probabilities[-1]) if at_cap else 0.0

    def survival(self, tokens: npt.ArrayLike) -> Reals:
        """Probability P(L > tokens)."""
        return 1.0 - self._below[np.searchsorted(self.support, np.asarray(tokens), side="right")]

    def excess_tokens(self, tokens: npt.ArrayLike) -> Reals:
        """Mean excess E[max(L - tokens, 0)]: tokens generated beyond `tokens`, averaged over all samples."""
        at = np.searchsorted(self.support, np.asarray(tokens), side="right")
        tokens_above = self.mean_tokens - self._tokens_below[at]
        return np.maximum(tokens_above - np.asarray(tokens) * (1.0 - self._below[at]), 0.0)

    def quantile(self, q: npt.ArrayLike) -> Reals:
        """Smallest length with P(L <= length) >= q, tokens; q in 0..1."""
        at = np.searchsorted(self._below[1:], np.asarray(q), side="left")
        return self.support[np.minimum(at, self.support.size - 1)]

    def longest_of(self, members: float) -> Self:
        """Distribution of the longest of independent samples, F(x) ** members; `members` need not be whole."""
        below = self._below[1:] ** members
        return replace(self, probabilities=np.diff(below, prepend=0.0), unseen_ratio=0.0, groups=None)

    def group_tail_ratio(self, group_size: int) -> float:
        """E[longest of a group] over E[L]: as measured for groups of this size, else for independent members."""
        if self.groups is not None and self.groups.group_size == group_size:
            return self.groups.tail_ratio
        return self.longest_of(group_size).mean_tokens / self.mean_tokens

    def draw(self, rng: np.random.Generator, shape: int | tuple[int, ...]) -> Counts:
        """Draw independent lengths in whole tokens, at least 1."""
        return np.maximum(np.rint(self.quantile(rng.random(shape))), 1.0).astype(np.int64)

    def scaled(self, factor: float) -> Self:
        """Distribution if every response is `factor` times as long; lengths beyond the cap become the atom there.

        Samples at the cap are only known to be at least that long. With a factor below 1 they are put at factor * cap,
        their minimum. Measured group tails are kept: they are ratios.
        """
        return self._moved(self.support * factor, self.max_output_tokens)

    def with_cap(self, max_output_tokens: int) -> Self:
        """Distribution under another cap. A higher cap leaves the old atom in place, its minimum."""
        return self._moved(self.support, max_output_tokens)

    def _moved(self, lengths: Reals, max_output_tokens: int | None) -> Self:
        ends = lengths if max_output_tokens is None else np.minimum(lengths, float(max_output_tokens))
        support, masses = _merged(ends, self.probabilities)
        return replace(self, support=support, probabilities=masses, max_output_tokens=max_output_tokens)


@lru_cache(maxsize=8)
def independent_members(law: LengthLaw, group_size: int) -> float:
    """Number of independent samples with the tail of a group: its size, or fewer if its members are alike.

    Cached: it is the same for every layout and draw.
    """
    if law.groups is None or law.groups.group_size != group_size:
        return float(group_size)
    fewest, most = 0.0, math.log(_MOST_MEMBERS_RATIO * group_size)
    for _ in range(_BISECTIONS):
        middle = (fewest + most) / 2.0
        short = law.longest_of(math.exp(middle)).mean_tokens < law.groups.tail_ratio * law.mean_tokens
        fewest, most = (middle, most) if short else (fewest, middle)
    return math.exp(most)


def _merged(lengths: Reals, masses: Reals) -> tuple[Reals, Reals]:
    """Merge equal lengths and sum their mass."""
    support, where = np.unique(lengths, return_inverse=True)
    return support, np.bincount(where, weights=masses).astype(np.float64)


def _product_limit(tokens: Reals, ended: Flags) -> tuple[Reals, Reals, float]:
    """Return the lengths at which samples ended, the mass of each, and the mass left beyond them."""
    lengths, where = np.unique(tokens, return_inverse=True)
    ends = np.bincount(where, weights=ended)
    leaves = np.bincount(where)
    at_risk = leaves[::-1].cumsum()[::-1]
    alive = np.cumprod(1.0 - ends / at_risk)
    masses = (-np.diff(alive, prepend=1.0)).astype(np.float64)
    return lengths[ends > 0], masses[ends > 0], float(alive[-1])


def measure_groups(
    lengths: npt.ArrayLike, finished: npt.ArrayLike, group_ids: Sequence[str | int] | npt.ArrayLike
) -> GroupLengths | None:
    """Measure tail and correlation over whole groups of the most common size; None with fewer than two, or of size 1.

    lengths: tokens, one per sample. finished: whether it ended by itself or at the cap. group_ids: its group. The
    correlation is the intraclass correlation of the analysis of variance, (MSB - MSW) / (MSB + (S - 1) MSW) (Shrout and
    Fleiss 1979, case 1).
    """
    _, group, sizes = np.unique(np.asarray(group_ids), return_inverse=True, return_counts=True)
    tokens = np.asarray(lengths, dtype=np.float64)
    whole = np.bincount(group, weights=np.asarray(finished, dtype=np.bool_)) == sizes
    if not whole.any():
        return None
    size = int(np.bincount(sizes[whole]).argmax())
    members = np.flatnonzero((whole & (sizes == size))[group])
    if size < 2 or members.size < 2 * size:
        return None
    table = tokens[members[np.argsort(group[members], kind="stable")]].reshape(-1, size)
    return GroupLengths(size, float(table.max(axis=1).mean() / table.mean()), _correlation(table))


def _correlation(table: Reals) -> float:
    """Intraclass correlation; rows are groups. If all lengths are equal, it is 1."""
    count, size = table.shape
    means = table.mean(axis=1)
    between = size * float(((means - table.mean()) ** 2).sum()) / (count - 1)
    within = float(((table - means[:, None]) ** 2).sum()) / (count * (size - 1))
    total = between + (size - 1) * within
    return (between - within) / total if total > 0.0 else 1.0


def law_of_mean(mean_tokens: float, cv_ratio: float, max_output_tokens: int | None) -> LengthLaw:
    """Lognormal distribution with this mean and coefficient of variation (sd over mean) after the cap cuts it.

    Without a cap, sigma^2 = ln(1 + cv^2) and the median is mean / sqrt(1 + cv^2). With a cap, both follow by root
    finding from E[min(X, M)^r] = e^(r m + r^2 sigma^2 / 2) Phi((ln M - m) / sigma - r sigma) + M^r (1 - Phi((ln M - m)
    / sigma)). Raises ValueError if lengths between 0 and the cap cannot have such a mean and deviation.
    """
    if max_output_tokens is None:
        spread = 1.0 + cv_ratio**2
        return LengthLaw.lognormal(mean_tokens / math.sqrt(spread), math.sqrt(math.log(spread)))
    if mean_tokens >= max_output_tokens:
        raise ValueError(f"a mean of {mean_tokens:g} tokens is not below the cap of {max_output_tokens}")
    low, high = np.array([_LEAST_SIGMA]), np.array([_MOST_SIGMA])

    def varies_enough(sigma: Reals) -> Flags:
        return _cut(_log_median(mean_tokens, sigma, max_output_tokens), sigma, max_output_tokens)[1] >= cv_ratio

    if not varies_enough(high):
        most = math.sqrt(max_output_tokens / mean_tokens - 1.0)
        raise ValueError(
            f"a mean of {mean_tokens:g} tokens under a cap of {max_output_tokens} varies by less than {most:.2f}"
        )
    _, sigma = bisect_condition(varies_enough, low, high)
    log_median = _log_median(mean_tokens, sigma, max_output_tokens)
    return LengthLaw.lognormal(math.exp(log_median[0]), float(sigma[0]), max_output_tokens)


def law_of_percentiles(percentiles: Mapping[float, float], max_output_tokens: int | None) -> LengthLaw:
    """Lognormal distribution through two percentiles (tokens by percentile), or closest to more of them in log length.

    Raises ValueError for fewer than two percentiles, percentiles not between 0 and 100, lengths that do not grow with
    them, or a length that is not below the cap, where only the fact that it was cut is known.
    """
    ordered = sorted(percentiles.items())
    lengths = [tokens for _, tokens in ordered]
    if len(ordered) < 2 or ordered[0][0] <= 0.0 or ordered[-1][0] >= 100.0:
        raise ValueError("it takes at least two percentiles, above 0 and below 100")
    if any(later <= earlier for earlier, later in pairwise(lengths)):
        raise ValueError("lengths must grow with their percentile")
    if max_output_tokens is not None and lengths[-1] >= max_output_tokens:
        raise ValueError(f"a percentile of {lengths[-1]:g} tokens is not below the cap of {max_output_tokens}")
    deviations = ndtri(np.array([percent for percent, _ in ordered]) / 100.0)
    sigma, log_median = np.polyfit(deviations, np.log(lengths), 1)
    return LengthLaw.lognormal(math.exp(log_median), float(sigma), max_output_tokens)


def _log_median(mean_tokens: float, sigma: Reals, max_output_tokens: int) -> Reals:
    """Log median of the lognormal with each sigma and this mean after the cut; the mean grows with the median."""
    low, high = math.log(mean_tokens) - sigma**2, math.log(max_output_tokens) + _MOST_SIGMA * sigma
    lines = sigma.ravel()

    def is_long_enough(log_median: Reals) -> Flags:
        return _cut(log_median, lines, max_output_tokens)[0] >= mean_tokens

    return bisect_condition(is_long_enough, low.ravel(), high.ravel())[1].reshape(sigma.shape)


def _cut(log_median: Reals, sigma: Reals, max_output_tokens: int) -> tuple[Reals, Reals]:
    """Mean, in tokens, and coefficient of variation of each lognormal after the cap cuts it."""
    distance = (math.log(max_output_tokens) - log_median) / sigma

    def moment(power: int) -> Reals:
        below = np.exp(power * log_median + (power * sigma) ** 2 / 2.0) * ndtr(distance - power * sigma)
        return below + max_output_tokens**power * ndtr(-distance)

    mean = moment(1)
    return mean, np.sqrt(np.maximum(moment(2) / mean**2 - 1.0, 0.0))
