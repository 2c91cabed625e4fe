"""Samples and groups of a simulation, and everything random about them: lengths, filtering, waits and step times.

Group g holds the samples g * S .. g * S + S - 1. A group is the unit that is queued: if samples are delivered one by
one, every sample is a group here, and only the lengths still follow the prompts. Columns are lists, not arrays: the
simulation touches one entry at a time, and whole columns are evaluated at the end. Members of a group are as alike as
measured: a Gaussian copula whose correlation gives the measured mean of the longest member. Not covered: any other
dependence, such as prompts that are hard in every epoch.
"""

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np
from scipy.special import ndtr, ndtri

from rlscope.model.arrays import Counts, Reals
from rlscope.model.lengths import LengthLaw
from rlscope.model.system import Workload

_QUANTILES: Final = 1024
"""Points of the length distribution on which the longest of a group is averaged."""
_NODES: Final = 32
"""Gauss-Hermite nodes of the part that members share."""
_MOST_ALIKE: Final = 0.999
"""Maximum correlation: at 1 there is no density."""
_BISECTIONS: Final = 20
_BLOCK_WAITS: Final = 1024
OPEN: Final = 0
"""Some sample of the group is not finished."""
QUEUED: Final = 1
"""Finished and not taken: in the queue, or held back because it is full."""
TRAINED: Final = 2
DROPPED: Final = 3
FILTERED: Final = 4
_BLOCK_GROUPS: Final = 256
"""Groups drawn at a time. The draws, and therefore the results, depend on it."""
NEVER: Final = -1


class SamplePiece(NamedTuple):
    """Tokens that a sample generated before it was preempted, or left for its environment."""

    sample: int
    start_pass: int
    tokens: int


class Draws:
    """Endless groups of lengths, waits for environments, and factors of steps."""

    def __init__(self, workload: Workload, staggered_samples: int, step_noise: float, rng: np.random.Generator) -> None:
        self._workload, self._step_noise, self._rng = workload, step_noise, rng
        self._correlation = group_correlation(workload.lengths)
        self._staggered_samples = staggered_samples
        turnaround_s = min(workload.turnaround_s, workload.environment_s)
        self.delivery_s = turnaround_s * workload.delivered_after_ratio
        """Seconds from the last token until the sample is delivered."""
        self.client_s = turnaround_s - self.delivery_s
        """Seconds from the delivery until its client has another sample for its place."""
        self._environment_s = workload.environment_s - turnaround_s
        self.has_pauses = self._environment_s > 0.0
        """Whether samples wait for their environment between two of their tokens."""
        self._wait_factors = _factors(workload.environment_waits_s)
        self._waits_s: list[float] = []

    def groups(self, count: int) -> tuple[list[int], list[bool]]:
        """Lengths in tokens of the samples of `count` groups, group after group, and whether each group is kept."""
        samples = count * self._workload.unit_samples
        lengths = self._lengths(-(-samples // self._workload.group_size))[:samples]
        if self._staggered_samples:
            first = min(self._staggered_samples, lengths.size)
            lengths[:first] = self._residual(first)
            self._staggered_samples -= first
        return lengths.tolist(), (self._rng.random(count) < self._workload.kept_ratio).tolist()

    def step_factor(self) -> float:
        """Lognormal factor with mean 1."""
        if self._step_noise == 0.0:
            return 1.0
        return float(np.exp(self._step_noise * self._rng.standard_normal() - self._step_noise**2 / 2))

    def pauses(self, lengths: Sequence[int]) -> tuple[list[float], list[int]]:
        """For samples of these lengths: seconds of the wait for the environment, and the tokens that follow it.

        The position of the wait in a response is not recorded: every place between two tokens is equally likely.
        """
        tokens = np.array(lengths)
        before = 1 + np.floor(self._rng.random(tokens.size) * (tokens - 1)).astype(np.int64)
        waits_s = [self.environment_s() for _ in lengths]
        after = np.where((np.array(waits_s) > 0.0) & (tokens > 1), tokens - before, 0)
        return waits_s, after.tolist()

    def environment_s(self) -> float:
        """The next sample's wait outside its engine, before its last token."""
        if self._wait_factors is None:
            return self._environment_s
        if not self._waits_s:
            self._waits_s = (self._environment_s * self._rng.choice(self._wait_factors, _BLOCK_WAITS)).tolist()
        return self._waits_s.pop()

    def _lengths(self, count: int) -> Counts:
        """Lengths of the samples of `count` prompts."""
        law, group_size = self._workload.lengths, self._workload.group_size
        if self._correlation == 0.0:
            return law.draw(self._rng, count * group_size)
        own = self._rng.standard_normal((count, group_size)) * math.sqrt(1.0 - self._correlation)
        shared = self._rng.standard_normal((count, 1)) * math.sqrt(self._correlation)
        tokens = law.quantile(ndtr(own + shared).ravel())
        return np.maximum(np.rint(tokens), 1.0).astype(np.int64)

    def _residual(self, count: int) -> Counts:
        """Remaining tokens of requests seen at a random moment.

        They are a uniform share of a length-biased length (renewal theory). A run that starts with these is spread out
        as in steady state, instead of in step.
        """
        law = self._workload.lengths
        biased = law.probabilities * law.support
        seen = self._rng.choice(law.support, count, p=biased / biased.sum())
        return np.maximum(np.ceil(seen * self._rng.random(count)), 1.0).astype(np.int64)


class Samples:
    """Columns with one entry per sample, or per group if the name says so."""

    def __init__(self, draws: Draws, group_size: int) -> None:
        self.group_size = group_size
        self._draws = draws
        self.has_pauses = draws.has_pauses
        self.groups_started = 0
        self.length_tokens: list[int] = []
        self.left_tokens: list[int] = []
        """Tokens to generate after the last admission or return."""
        self.engine: list[int] = []
        self.pause_s: list[float] = []
        """Seconds of the coming wait for its environment; 0 once it has waited. Empty if no sample waits."""
        self.after_tokens: list[int] = []
        """Tokens that follow that wait; 0 once it has begun, or if there is none. Empty if no sample waits."""
        self.start_pass: list[int] = []
        """Passes that its engine had done at the last admission or return; NEVER while the sample is in no batch."""
        self.first_version: list[int] = []
        """Version of its first token; NEVER before it is admitted."""
        self.admitted_s: list[float] = []
        self.finished_s: list[float] = []
        """NEVER while it is not finished."""
        self.pieces: list[SamplePiece] = []
        self.group_unfinished: list[int] = []
        self.group_is_kept: list[bool] = []
        self.group_outcome: list[int] = []
        self.group_first_version: list[int] = []
        """Oldest version of any of its tokens; set when all samples are finished."""
        self.group_consumer_version: list[int] = []
        self.group_step: list[int] = []
        self.group_left_s: list[float] = []
        """Time when it was taken, dropped or filtered; NEVER before that."""

    def start_group(self) -> range:
        """Add a group and return its samples."""
        if self.groups_started == len(self.group_outcome):
            self._draw()
        first = self.groups_started * self.group_size
        self.groups_started += 1
        return range(first, first + self.group_size)

    def members(self, group: int) -> slice:
        """Slice of a group's samples."""
        return slice(group * self.group_size, (group + 1) * self.group_size)

    def tokens_of(self, groups: list[int]) -> int:
        """Response tokens of whole groups."""
        return sum(sum(self.length_tokens[self.members(group)]) for group in groups)

    def _draw(self) -> None:
        lengths, kept = self._draws.groups(_BLOCK_GROUPS)
        if self.has_pauses:
            pauses_s, after_tokens = self._draws.pauses(lengths)
            self.pause_s += pauses_s
            self.after_tokens += after_tokens
        self.length_tokens += lengths
        self.left_tokens += lengths
        for column in (self.engine, self.start_pass, self.first_version):
            column += [NEVER] * len(lengths)
        for times_s in (self.admitted_s, self.finished_s):
            times_s += [float(NEVER)] * len(lengths)
        self.group_unfinished += [self.group_size] * len(kept)
        self.group_is_kept += kept
        self.group_outcome += [OPEN] * len(kept)
        for column in (self.group_first_version, self.group_step, self.group_consumer_version):
            column += [NEVER] * len(kept)
        self.group_left_s += [float(NEVER)] * len(kept)


def _factors(waits_s: tuple[float, ...]) -> Reals | None:
    """Waits over their mean; None if they do not vary."""
    waits = np.array(waits_s, dtype=np.float64)
    return waits / waits.mean() if waits.size and waits.min() < waits.max() else None


@lru_cache(maxsize=8)
def group_correlation(law: LengthLaw) -> float:
    """Correlation of the copula that gives groups the measured tail, 0..1; 0 if none was measured.

    P(longest <= x) = E[Phi((z_x - sqrt(r) Z) / sqrt(1 - r)) ** S] for equally correlated normals with correlation r
    (Dunnett and Sobel 1955), solved for the tail ratio by bisection. Own use.

    Cached: it is the same for every layout, and for every change except of the lengths.
    """
    if law.groups is None or law.groups.group_size < 2:
        return 0.0
    edges = np.arange(1, _QUANTILES + 1) / _QUANTILES
    tokens, z = law.quantile(edges - 0.5 / _QUANTILES), ndtri(np.minimum(edges, 1.0 - 1e-12))
    low, high = 0.0, _MOST_ALIKE
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        below = _longest_below(z, middle, law.groups.group_size)
        longest = float((np.diff(below, prepend=0.0) * tokens).sum()) / float(tokens.mean())
        low, high = (middle, high) if longest > law.groups.tail_ratio else (low, middle)
    return 0.0 if high <= 2 * _MOST_ALIKE / 2**_BISECTIONS else high


def _longest_below(z: Reals, correlation: float, group_size: int) -> Reals:
    """P(the longest of a group is not above the quantile at each z); its last value is 1."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(_NODES)
    spread = (z[:, None] - math.sqrt(correlation) * nodes) / math.sqrt(1.0 - correlation)
    below = np.einsum("ij,j->i", ndtr(spread) ** group_size, weights / weights.sum())
    below[-1] = 1.0
    return below
