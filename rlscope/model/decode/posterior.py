"""Posterior of a decode curve: the parameters of its form, given measured passes, passes over prompts, and hardware.

A vector holds, in this order, the log of the flat branch, the parameters of the form, the overhead (if the device is
known), the log of the KV term (if resident tokens are known), and the logs of the noise of a row and of the residual.
Without a device, the prior allows anything from flat to proportional at the batch sizes seen, with all elasticities
equally likely.

Passes over prompts are evidence too: T prompt tokens stream the same weights and multiply as many rows as a decode pass
over T requests (roofline, Williams, Waterman and Patterson 2009; the comparison is our own). Their time equals that of
decoding up to a factor that changes slowly with the number of rows. If a run stayed at one batch size, they show the
slope of its curve. Prompts found in a cache cost less than they count; such passes are recognized and left out. Not
covered: forms with jumps, such as batches padded to captured sizes, and errors that cells share beyond one doubling of
the batch size, such as an engine that is slow throughout.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from rlscope.model.arrays import Counts, Flags, Reals
from rlscope.model.decode.curves import (
    ExpertHitCurve,
    Form,
    FormCurve,
    PNormCurve,
    SigmoidCurve,
    SoftplusCurve,
    expert_hit_s,
    pnorm_s,
    sigmoid_s,
    softplus_s,
)
from rlscope.model.decode.measurements import BATCH_CELLS_PER_DOUBLING, DecodePoints
from rlscope.model.decode.prior import HardwarePrior, LogNormal

_HUBER: Final = 1.345
"""Residuals, in deviations, beyond which their weight falls: 95% as efficient as least squares (Huber 1964)."""
FORM_ERROR: Final = LogNormal(0.02, 1.0)
"""Log deviation of the form itself over a doubling of the batch size: kernels change with it, and fits to the table of
measured ones are 1 to 3% off. The run's own deviation is learned: passes on a smooth line are followed closely, and
bumps at small batches do not bend the curve far beyond them."""
_BUMP_DEGREES: Final = 4.0
"""Degrees of freedom of the Student t of that error: a kernel may be 10% slower from one size to the next."""
FACTOR_LOG_SD: Final = 0.3
"""Log deviation of the ratio of decoding to computing prompts at the same number of rows: 1.4 for the example pipeline
on a CPU, whose decode passes sample; 0.7 to 1.3 if only the rate of multiplication differs."""
DRIFT_LOG_SD: Final = 0.1
"""Change of that factor over one doubling of the rows, as a random walk from the batch that the run measured."""
CELL_LOG_SD: Final = 0.05
"""Additional log deviation of a cell."""
_DEGREES: Final = 4.0
"""Degrees of freedom of the Student t of the whole: prompts of another kind should be outvoted, not bend the curve."""
_CELLS_PER_DOUBLING: Final = 2
_LEAST_SHARE: Final = 0.6
"""Minimum time of a pass over prompts, relative to decode passes over fewer tokens: a pass that takes less did not do
the same work. Reading the KV cache and sampling tokens, which only decoding does, account for the rest."""
_SHAPES: Final[Mapping[Form, tuple[str, ...]]] = {
    "pnorm": ("hinge", "sharpness", "growth"),
    "softplus": ("hinge", "width", "rise", "growth"),
    "sigmoid": ("hinge", "width", "rise", "step", "growth"),
    "expert_hit": ("experts_s", "hit_rate", "per_request_s"),
}
ROW_NOISE: Final = LogNormal(0.1, 1.0)
"""Log deviation of one measurement of a pass: a few percent on a dedicated GPU, several times that on a shared host."""
RESIDUAL: Final = LogNormal(0.02, 0.7)
"""Deviation of a curve of the right form from the mean of a cell: 1 to 3% in the table of measured kernels."""
SHARPNESS: Final = LogNormal(2.4, 0.5)
"""Exponent p of GPUs: 1.5 to 3.8 in fits of measured kernels."""
HIT_RATE: Final = LogNormal(0.06, 1.0)
"""Hit rate: one expert of sixteen per token."""
_USUAL: Final[Mapping[str, float]] = {
    "sharpness": SHARPNESS.median,
    "width": 0.5,
    "hit_rate": HIT_RATE.median,
    "form_error": FORM_ERROR.median,
    "row_noise": ROW_NOISE.median,
    "residual": RESIDUAL.median,
}
OVERHEAD_UNIT_S: Final = 1e-3
GROWTH_UNIT: Final = 0.02
LINEAR_UNITS: Final[Mapping[str, float]] = {"overhead_s": OVERHEAD_UNIT_S, "step": 1.0, "growth": GROWTH_UNIT}
"""Parameters that are 0 or more and not logs in the vector, with their unit there, so that all have a size of about
1."""
_BROAD_SPREAD: Final[Mapping[str, float]] = {"hinge": 2.0, "overhead_s": 3.0, "kv_s_per_token": 1.5, "growth": 2.0}
"""Standard deviations of the distribution that annealing starts from, in the vector's units; 1 if not named."""
_AGREED_DIGITS: Final = 9
ROOT_2_PI: Final = math.sqrt(2 * math.pi)
FARTHEST: Final = 30.0
"""Bound of every parameter: factors of e^30 are numerical accidents."""


@dataclass(frozen=True, slots=True)
class ShapePrior:
    """Prior of the shape of a curve if its device is known.

    Medians and spreads over fits of the table of measured kernels (`benchmarks/latency_fit.py`, which also reports how
    well those of the other devices and models carry over to one that is left out).
    """

    sharpness: LogNormal
    softplus_width: LogNormal
    """Width of the hinge, relative to its place; likewise below."""
    softplus_rise: LogNormal
    """At 1, the affine branch goes through the origin, as per-request work does."""
    sigmoid_width: LogNormal
    sigmoid_rise: LogNormal
    growth_scale: float
    """Scale of a half-normal elasticity of the flat branch."""


USUAL_SHAPES: Final = ShapePrior(
    sharpness=SHARPNESS,
    softplus_width=LogNormal(0.45, 0.6),
    softplus_rise=LogNormal(0.85, 0.35),
    sigmoid_width=LogNormal(0.9, 0.6),
    sigmoid_rise=LogNormal(0.8, 0.3),
    growth_scale=0.02,
)


@dataclass(frozen=True, slots=True)
class Reference:
    """A typical pass of the run; expectations without a device are relative to it."""

    running: float
    pass_s: float
    kv_tokens: float | None
    """None if not recorded, or mostly 0."""

    @classmethod
    def of(cls, cells: DecodePoints) -> "Reference":
        """Return the medians of the cells."""
        kv_tokens = float(np.median(cells.kv_tokens))
        known = kv_tokens if kv_tokens > 0 else None
        return cls(float(np.median(cells.running)), float(np.median(cells.typical_s)), known)


@dataclass(frozen=True, slots=True, eq=False)
class PassEvidence:
    """The cells in the form that the likelihood needs."""

    running: Reals
    kv_tokens: Reals
    log_pass_s: Reals
    rows: Reals
    known_variance: Reals
    """Variance of log time due to the error of the batch size."""
    size: Counts
    """Number of each cell's batch size."""
    order: Counts
    """The cells by batch size."""
    firsts: Counts
    """Where each size begins in that order."""
    sharing: Reals
    """Number of sizes within one doubling of each, which share one error of the form."""

    @classmethod
    def of(cls, cells: DecodePoints) -> "PassEvidence":
        """Compute the variances of cells.

        An error of the batch size counts with the largest possible elasticity, 1 (effective variance, Barker and Diana
        1974). The form's own error belongs to the batch size: cells of one size share it, and differ only by their
        resident tokens. The sizes within one doubling carry no more information together than one alone: each has the
        error times their number.
        """
        known_variance = (cells.running_sd / cells.running) ** 2
        numbers = np.floor(BATCH_CELLS_PER_DOUBLING * np.log2(cells.running)).astype(np.int64)
        sizes, size = np.unique(numbers, return_inverse=True)
        doubling = sizes // BATCH_CELLS_PER_DOUBLING
        sharing = (doubling[:, None] == doubling[None, :]).sum(axis=1)
        order = np.argsort(size, kind="stable")
        firsts = np.searchsorted(size[order], np.arange(len(sizes)))
        log_pass_s = np.log(cells.typical_s)
        return cls(cells.running, cells.kv_tokens, log_pass_s, cells.rows, known_variance, size, order, firsts, sharing)

    def log_likelihood(self, log_ratio: Reals, residual: Reals, row_noise: Reals, form_error: Reals) -> Reals:
        """Log density, up to a constant, of the cells about a curve: Huber's distribution in log time.

        log_ratio: log of the curve's seconds over the cells', one row per curve. residual: log deviation of cells
        beyond the known part. row_noise: log deviation of one measurement, where a cell averages as many as it has
        rows. form_error: log deviation of the form over a doubling. The last three have one row per curve, as a column.

        The form's error d at a size whose cells have weights w is the error of their weighted mean, with the variance
        var d + 1 / sum(w) (random effects, Laird and Ware 1982), by a Student t: one size that is much slower than
        those about it should be outvoted (Lange, Little and Taylor 1989).
        """
        inverse = 1.0 / (residual**2 + row_noise**2 / self.rows + self.known_variance)
        weight = self._by_size(inverse)
        shared = self._by_size(log_ratio * inverse) / weight
        own = np.abs(log_ratio - shared[:, self.size]) * np.sqrt(inverse)
        within = np.minimum(own, _HUBER)
        huber = (within * (own - within / 2) - np.log(inverse) / 2).sum(axis=-1)
        form_variance = form_error**2 * self.sharing
        squared = shared**2 / (form_variance + 1.0 / weight)
        bump = (_BUMP_DEGREES + 1) * np.log1p(squared / _BUMP_DEGREES) + np.log1p(form_variance * weight)
        return -huber - bump.sum(axis=-1) / 2

    def _by_size(self, values: Reals) -> Reals:
        """Sum over the cells of each size, one row per row of values."""
        return np.add.reduceat(values[:, self.order], self.firsts, axis=1)


@dataclass(frozen=True, slots=True, eq=False)
class PromptPasses:
    """Passes over prompts that a decode curve is compared with; one element per cell of similar sizes."""

    tokens: Reals
    """Tokens computed in one pass, prompts and decoded ones together."""
    pass_s: Reals
    kv_tokens: Reals
    """Resident tokens that the pass reads: 0 if it decodes nothing."""
    covariance: Reals
    """Covariance of the log of decoding over these passes, cell by cell."""

    whitening: Reals
    """Factor of the inverse of that covariance: makes deviations independent, with variance 1."""

    @classmethod
    def of(cls, tokens: Reals, pass_s: Reals, kv_tokens: Reals, covariance: Reals) -> "PromptPasses":
        """Add the factor of the inverse, rounded to the digits that every linear algebra library agrees on."""
        factor = np.linalg.inv(np.linalg.cholesky(covariance)).astype(np.float64)
        return cls(tokens, pass_s, kv_tokens, covariance, factor.T.round(_AGREED_DIGITS))

    def log_density(self, log_ratio: Reals) -> Reals:
        """Log density, up to a constant, of these passes: a multivariate Student t.

        log_ratio: log of a curve at as many rows over these passes, one row per curve. The distribution is robust
        against outliers (Lange, Little and Taylor 1989).
        """
        deviations = np.einsum("ij,jk->ik", log_ratio, self.whitening)
        squared = np.einsum("ij,ij->i", deviations, deviations)
        return -(_DEGREES + len(self.tokens)) / 2 * np.log1p(squared / _DEGREES)


def prompt_passes(prefills: DecodePoints, cells: DecodePoints) -> PromptPasses | None:
    """Select the passes to compare a curve with; None if no pass over prompts is informative.

    prefills: `running` is the tokens computed in a pass, prompts and decoded ones, and `kv_tokens` the tokens that it
    also reads. cells: decode passes of the same engines. Sizes are grouped by half doublings, weighted by rows.
    """
    usable = prefills.where((prefills.running > 0) & (prefills.typical_s > 0) & (prefills.rows > 0))
    if not len(usable) or not len(cells):
        return None
    numbers = np.floor(_CELLS_PER_DOUBLING * np.log2(usable.running)).astype(np.int64)
    _, place = np.unique(numbers, return_inverse=True)
    rows = np.bincount(place, weights=usable.rows)
    columns = (usable.running, usable.typical_s, np.nan_to_num(usable.kv_tokens))
    tokens, pass_s, kv_tokens = (np.bincount(place, weights=column * usable.rows) / rows for column in columns)
    kept = pass_s >= _LEAST_SHARE * _decoding_s(tokens, cells)
    if not kept.any():
        return None
    doublings = np.log2(tokens[kept] / float(np.median(cells.running)))
    return PromptPasses.of(tokens[kept], pass_s[kept], kv_tokens[kept], _covariance(doublings))


def _covariance(doublings: Reals) -> Reals:
    """Covariance of a common factor, a random walk from 0 to either side, and each cell's own error."""
    nearer = np.minimum(np.abs(doublings)[:, None], np.abs(doublings)[None, :])
    shared = np.where(doublings[:, None] * doublings[None, :] > 0, nearer, 0.0)
    return FACTOR_LOG_SD**2 + DRIFT_LOG_SD**2 * shared + CELL_LOG_SD**2 * np.eye(len(doublings))


def _decoding_s(tokens: Reals, cells: DecodePoints) -> Reals:
    """Seconds of the longest typical decode pass over at most `tokens` requests; 0 if there is none."""
    fewer = cells.running[None, :] <= tokens[:, None]
    return np.where(fewer, cells.typical_s[None, :], 0.0).max(axis=1)


@dataclass(frozen=True, slots=True)
class FormModel:
    """One form with its expectations. A reference or a prior is required."""

    form: Form
    prior: HardwarePrior | None
    reference: Reference | None
    prompts: PromptPasses | None = None
    """Passes over prompts, which take about as long."""
    shapes: ShapePrior = USUAL_SHAPES

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the vector's parameters, in order."""
        overhead = () if self.prior is None else ("overhead_s",)
        kv = ("kv_s_per_token",) if self.has_kv else ()
        return ("flat_s", *_SHAPES[self.form], *overhead, *kv, "form_error", "row_noise", "residual")

    @property
    def least(self) -> Reals:
        """Smallest value of each parameter."""
        return np.array([0.0 if name in LINEAR_UNITS else -np.inf for name in self.names])

    @property
    def has_form_prior(self) -> bool:
        """Whether the hardware alone determines a prior of the curve."""
        return self.shape_prior is not None

    @property
    def has_kv(self) -> bool:
        """Whether the curve has a KV term: resident tokens are known, or a device determines their cost."""
        if self.reference is None:
            return self.prior is not None and self.prior.kv_s_per_token is not None
        return self.reference.kv_tokens is not None

    @property
    def shape_prior(self) -> HardwarePrior | None:
        """Hardware prior if it applies to this form: dense models and mixtures of experts have different ones."""
        if self.prior is None or (self.prior.experts is None) == (self.form == "expert_hit"):
            return None
        return self.prior

    def starts(self) -> Reals:
        """Vectors to search from: the hardware's, and the run's typical pass with its hinge below, near and beyond."""
        starts: list[Mapping[str, float]] = []
        kv = self.prior.kv_s_per_token.median if self.prior is not None and self.prior.kv_s_per_token else 1e-7
        if (hardware := self.shape_prior) is not None:
            parts = {"flat_s": hardware.flat_s.median, "per_request_s": hardware.per_request_s.median}
            experts = hardware.experts
            routed = (
                {} if experts is None else {"experts_s": experts.experts_s.median, "hit_rate": experts.hit_rate.median}
            )
            starts.append({**parts, **routed, "hinge": parts["flat_s"] / parts["per_request_s"], "kv_s_per_token": kv})
        if (typical := self.reference) is not None:
            kv = 0.2 * typical.pass_s / max(typical.kv_tokens or 1.0, 1.0)
            part_s = 0.5 * typical.pass_s
            for beyond in (0.5, 2.0, 8.0):
                parts = {"flat_s": part_s, "experts_s": part_s, "per_request_s": part_s / typical.running / beyond}
                starts.append({**parts, "hinge": beyond * typical.running, "kv_s_per_token": kv})
        return np.array([[self._coordinate(name, start) for name in self.names] for start in starts])

    def _coordinate(self, name: str, given: Mapping[str, float]) -> float:
        if name in LINEAR_UNITS:
            return 0.1
        return math.log(given.get(name, _USUAL.get(name, 1.0)))

    def row_noise(self, vectors: Reals) -> Reals:
        """Log deviation of one measurement, one per row."""
        return np.exp(vectors[:, self.names.index("row_noise")])

    def scaled(self, vectors: Reals, log_factor: Reals | float) -> Reals:
        """Scale the vectors so that their curves are exp(log_factor) times as high everywhere; one factor per row."""
        moved = vectors.copy()
        for number, name in enumerate(self.names):
            if name in ("flat_s", "experts_s", "per_request_s", "kv_s_per_token"):
                moved[:, number] += log_factor
            elif name == "overhead_s":
                moved[:, number] *= np.exp(log_factor)
        return moved

    def named(self, vectors: Reals) -> dict[str, Reals]:
        """Parameters by name in their own units, as columns that broadcast against cells."""
        factors = np.exp(vectors)
        return {
            name: factors[..., number, None] if unit is None else vectors[..., number, None] * unit
            for number, (name, unit) in enumerate((name, LINEAR_UNITS.get(name)) for name in self.names)
        }

    def pass_s(self, vectors: Reals, running: Reals, kv_tokens: Reals) -> Reals:
        """Seconds of each cell's pass, one row per vector."""
        given = self.named(vectors)
        seconds = work_s(self.form, given, running) + given.get("overhead_s", 0.0)
        return seconds + given["kv_s_per_token"] * kv_tokens if "kv_s_per_token" in given else seconds

    def curve(self, vector: Reals) -> FormCurve:
        """Curve of one vector."""
        given = {name: float(column[0]) for name, column in self.named(vector).items()}
        ends = (given.get("overhead_s", 0.0), given.get("kv_s_per_token", 0.0))
        if self.form == "pnorm":
            per_request_s = given["flat_s"] / given["hinge"]
            return PNormCurve(given["flat_s"], per_request_s, given["sharpness"], *ends, growth=given["growth"])
        if self.form == "expert_hit":
            parts = (given["flat_s"], given["experts_s"], given["hit_rate"], given["per_request_s"])
            return ExpertHitCurve(*parts, *ends)
        hinged = (given["flat_s"], given["hinge"], given["width"], given["rise"])
        if self.form == "softplus":
            return SoftplusCurve(*hinged, *ends, growth=given["growth"])
        return SigmoidCurve(*hinged, given["step"], *ends, growth=given["growth"])


@dataclass(frozen=True, slots=True, eq=False)
class Broad:
    """A normal distribution of the parameters, wider than any posterior; half of one for parameters with minimum 0."""

    centre: Reals
    spread: Reals
    is_half: Flags

    @classmethod
    def of(cls, model: FormModel, best: Reals) -> "Broad":
        """Center the distribution on the most probable vector."""
        is_half = np.isfinite(model.least)
        spread = np.array([_BROAD_SPREAD.get(name, 1.0) for name in model.names])
        return cls(np.where(is_half, 0.0, best), spread, is_half)

    def draw(self, count: int, rng: np.random.Generator) -> Reals:
        """Draw vectors, one per row."""
        deviations = self.spread * rng.standard_normal((count, len(self.centre)))
        return self.centre + np.where(self.is_half, np.abs(deviations), deviations)

    def log_density(self, vectors: Reals) -> Reals:
        """Normalized log density; one value per row of vectors."""
        deviations = (vectors - self.centre) / self.spread
        constants = np.log(self.spread * ROOT_2_PI) - self.is_half * math.log(2.0)
        inside = np.all(~self.is_half | (vectors >= 0.0), axis=-1)
        return np.where(inside, -(deviations**2 / 2 + constants).sum(axis=-1), -np.inf)


def work_s(form: Form, given: Mapping[str, Reals], running: Reals) -> Reals:
    """Seconds of the form's work, without overhead and KV; given: parameters by name, columns that broadcast."""
    if form == "expert_hit":
        return expert_hit_s(running, given["flat_s"], given["experts_s"], given["hit_rate"], given["per_request_s"])
    flat_s, hinge, growth = given["flat_s"], given["hinge"], given["growth"]
    if form == "pnorm":
        return pnorm_s(running, flat_s, hinge, given["sharpness"], growth)
    if form == "softplus":
        return softplus_s(running, flat_s, hinge, given["width"], given["rise"], growth)
    return sigmoid_s(running, flat_s, hinge, given["width"], given["rise"], given["step"], growth)
