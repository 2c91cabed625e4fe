"""Evidence on a decode curve's parameters, from passes and from hardware, as residuals of a least-squares fit.

A vector holds the logs of the curve's parameters. Each expectation of a parameter and each cell of passes is a residual
in its own standard deviations; those of passes count by a Student t, so that a batch size that is much slower than
those about it is outvoted.

Passes over prompts are evidence too: T prompt tokens stream the same weights and multiply as many rows as a decode pass
over T requests (roofline, Williams, Waterman and Patterson 2009; the comparison is our own). Their time equals that of
decoding up to a factor that changes slowly with the number of rows. If a run stayed at one batch size, they show the
slope of its curve. Prompts found in a cache cost less than they count; such passes are recognized and left out. Not
covered: forms with jumps, such as batches padded to captured sizes, and errors that cells share beyond one doubling of
the batch size, such as an engine that is slow throughout.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from rlscope.model.arrays import Counts, Reals
from rlscope.model.decode.curves import TIMES, Form, RooflineCurve, log_of_one_and
from rlscope.model.decode.measurements import BATCH_CELLS_PER_DOUBLING, NO_POINTS, DecodePoints, averaged
from rlscope.model.decode.prior import HIT_RATE, USUAL_SHAPES, HardwarePrior, LogNormal, ShapePrior
from rlscope.model.numerics.least_squares import DEGREES, Linearized

FORM_LOG_SD: Final = 0.02
"""Log deviation of the form itself over a doubling of the batch size: kernels change with it, and fits to the table of
measured ones are 1 to 3% off. The run's own deviation scales it."""
ROW_LOG_SD: Final = 0.1
"""Log deviation of one measurement of a pass: a few percent on a dedicated GPU, several times that on a shared host."""
RESIDUAL_LOG_SD: Final = 0.02
"""Log deviation of the mean of a cell from those of its batch size beyond that."""
_OVERHEAD_LOG_SD: Final = 1.2
"""Log deviation of the overhead of a pass over engines of any software."""
_SHARPNESS_UNKNOWN: Final = LogNormal(1.7, 0.5)
"""Exponent p over GPUs and CPUs: CPUs and small models mostly add up the costs of a pass (p = 1)."""
_SHARPNESS_OF_EXPERTS: Final = LogNormal(1.0, 0.2)
"""Exponent p of the layers that all tokens pass: the experts' own bend hides most of it."""
_LEVEL_LOG_SD: Final = 2.0
"""Log deviation of the flat branch about a typical pass if no device is known: it only keeps the search bounded."""
_HINGE_RATIO: Final = 12.0
"""Median of the hinge (flat branch over the time of a request) over the typical batch if no device is known. Set with
the table of measured kernels in view, as is its log deviation: from near the batch to a hundred times that."""
_HINGE_LOG_SD: Final = 2.0
_PART_LOG_SD: Final = 1.5
"""Log deviation of the experts' time over the flat branch if no device is known: within a factor of twenty."""
_KV_RATIO: Final = 0.3
"""Median share of a typical pass that reads the KV cache, if the device does not tell."""
_KV_LOG_SD: Final = 1.2
FACTOR_LOG_SD: Final = 0.3
"""Log deviation of the ratio of decoding to computing prompts at the same number of rows: 1.4 for the example pipeline
on a CPU, whose decode passes sample; 0.7 to 1.3 if only the rate of multiplication differs."""
DRIFT_LOG_SD: Final = 0.1
"""Change of that factor over one doubling of the rows, from the batch that the run measured."""
CELL_LOG_SD: Final = 0.05
"""Additional log deviation of a cell of passes over prompts."""
_PROMPT_CELLS_PER_DOUBLING: Final = 2
_LEAST_SHARE: Final = 0.6
"""Minimum time of a pass over prompts, relative to decode passes over fewer tokens: a pass that takes less did not do
the same work. Reading the KV cache and sampling tokens, which only decoding does, account for the rest."""
_USUAL_DOUBLINGS: Final = 4.0
"""Doublings of the batch size that the usual error of the form counts for, against those of the run."""
_BENT: Final = 3
"""Doublings that the curve follows whatever their error: as many as it has parameters of its shape."""
_PROMPT_FACTOR: Final = "prompt_factor"


_Law = tuple[Mapping[str, float], LogNormal]
"""Expectation of a product of parameters: the exponent of each, and the law of the product."""


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


def prompt_passes(prefills: DecodePoints, cells: DecodePoints) -> DecodePoints:
    """Select the passes over prompts to compare a curve with; none if none is informative.

    prefills: `running` is the tokens computed in a pass, prompts and decoded ones, and `kv_tokens` the tokens that it
    also reads: 0 if it decodes nothing. cells: decode passes of the same engines. Sizes are grouped by half doublings.
    """
    usable = prefills.where((prefills.running > 0) & (prefills.typical_s > 0) & (prefills.rows > 0))
    if not len(usable) or not len(cells):
        return NO_POINTS
    numbers = np.floor(_PROMPT_CELLS_PER_DOUBLING * np.log2(usable.running))
    known = replace(usable, kv_tokens=np.nan_to_num(usable.kv_tokens))
    grouped = averaged(known, np.unique(numbers, return_inverse=True)[1])
    return grouped.where(grouped.typical_s >= _LEAST_SHARE * _decoding_s(grouped.running, cells))


def prompt_log_sd(prompts: DecodePoints, cells: DecodePoints) -> Reals:
    """Log deviation of decoding over passes over prompts, besides the factor that all of them share."""
    doublings = np.abs(np.log2(prompts.running / float(np.median(cells.running))))
    return np.sqrt(CELL_LOG_SD**2 + DRIFT_LOG_SD**2 * doublings) * math.sqrt(_PROMPT_CELLS_PER_DOUBLING)


def _decoding_s(tokens: Reals, cells: DecodePoints) -> Reals:
    """Seconds of the longest typical decode pass over at most `tokens` requests; 0 if there is none."""
    fewer = cells.running[None, :] <= tokens[:, None]
    return np.where(fewer, cells.typical_s[None, :], 0.0).max(axis=1)


@dataclass(frozen=True, slots=True, eq=False)
class _Sizes:
    """The cells, in order, by batch size: the form's error belongs to the size, and the cells of one size share it."""

    own_sd: Reals
    """Log deviation of each cell from the mean of its size."""
    size: Counts
    """Number of each cell's size."""
    firsts: Counts
    """First cell of each size."""
    sharing: Reals
    """Number of sizes within one doubling of each: together they tell no more than one alone, so each has the error
    times their number."""
    doublings: int

    @classmethod
    def of(cls, cells: DecodePoints) -> "_Sizes":
        """Compute the deviations of cells."""
        numbers = np.floor(BATCH_CELLS_PER_DOUBLING * np.log2(cells.running)).astype(np.int64)
        sizes, size = np.unique(numbers, return_inverse=True)
        doubling = sizes // BATCH_CELLS_PER_DOUBLING
        return cls(
            own_sd=np.sqrt(RESIDUAL_LOG_SD**2 + ROW_LOG_SD**2 / cells.rows),
            size=size,
            firsts=np.searchsorted(size, np.arange(len(sizes))),
            sharing=(doubling[:, None] == doubling[None, :]).sum(axis=1).astype(np.float64),
            doublings=len(np.unique(doubling)),
        )

    def deviations(self, log_ratio: Reals, form_log_sd: float) -> Reals:
        """Deviations of cells from the mean of their size, then of these means from the form (random effects, Laird
        and Ware 1982), in standard deviations.
        """
        inverse = self.own_sd**-2
        weight = self._by_size(inverse)
        shared = self._by_size(log_ratio * inverse) / weight
        own = (log_ratio - shared[..., self.size]) / self.own_sd
        return np.concatenate([own, shared / np.sqrt(form_log_sd**2 * self.sharing + 1.0 / weight)], axis=-1)

    def _by_size(self, values: Reals) -> Reals:
        return np.add.reduceat(values, self.firsts, axis=-1)


@dataclass(frozen=True, slots=True, eq=False)
class CurveEvidence:
    """Residuals of curves of one form. Cells or a hardware prior are required."""

    form: Form
    cells: DecodePoints
    prior: HardwarePrior | None
    prompts: DecodePoints = NO_POINTS
    """Passes over prompts, which take about as long as decode passes over as many tokens: `prompt_passes`."""
    shapes: ShapePrior = USUAL_SHAPES
    form_log_sd: float = FORM_LOG_SD
    names: tuple[str, ...] = field(init=False)
    """Names of the vector's parameters, in order."""
    _law_weights: Reals = field(init=False)
    """Weights of the parameters in the expectations, one column each, in deviations."""
    _law_means: Reals = field(init=False)
    _sizes: "_Sizes | None" = field(init=False)

    def __post_init__(self) -> None:
        laws = tuple(self._expectations())
        names = tuple(dict.fromkeys(name for exponents, _ in laws for name in exponents))
        weights = [[exponents.get(name, 0.0) / law.log_sd for exponents, law in laws] for name in names]
        object.__setattr__(self, "names", names)
        object.__setattr__(self, "_law_weights", np.array(weights, dtype=np.float64))
        object.__setattr__(self, "_law_means", np.array([math.log(law.median) / law.log_sd for _, law in laws]))
        object.__setattr__(self, "_sizes", _Sizes.of(self.cells) if len(self.cells) else None)

    @property
    def shape_prior(self) -> HardwarePrior | None:
        """Hardware prior if it applies to this form: dense models and mixtures of experts have different ones."""
        if self.prior is None or (self.prior.experts is None) == (self.form == "expert_hit"):
            return None
        return self.prior

    def with_own_error(self, vector: Reals) -> "CurveEvidence":
        """Scale the error of the form to that of the best curve, if the sizes show it."""
        sizes, cells = self._sizes, self.cells
        if sizes is None:
            return self
        log_ratio = np.log(self.pass_s(vector, cells.running, cells.kv_tokens) / cells.typical_s)
        deviations = sizes.deviations(log_ratio, self.form_log_sd)[len(cells) :]
        squares = float(((DEGREES + 1.0) * np.log1p(deviations**2 / DEGREES)).sum())
        freedom = max(sizes.doublings - _BENT, 0)
        scale = math.sqrt((_USUAL_DOUBLINGS + squares) / (_USUAL_DOUBLINGS + freedom))
        return replace(self, form_log_sd=self.form_log_sd * scale)

    def linearized(self, vectors: Reals, noise: Reals | float = 0.0) -> Linearized:
        """Residuals at vectors, one row each; noise: deviations of the evidence that each problem is fitted to."""
        weights = self._law_weights
        plain, robust = vectors @ weights - self._law_means, [np.empty((len(vectors), 0))]
        plain_slopes = np.broadcast_to(weights[:, None, :], (len(self.names), *plain.shape))
        slopes = [np.empty((len(self.names), len(vectors), 0))]
        for log_ratio, log_slopes, deviations in self._compared(vectors):
            robust.append(deviations(log_ratio))
            slopes.append(deviations(log_slopes))
        values = np.concatenate([plain, *robust], axis=1) - noise
        laws = plain.shape[1]
        return Linearized(values[:, :laws], values[:, laws:], plain_slopes, np.concatenate(slopes, axis=2))

    def _compared(self, vectors: Reals) -> Iterator[tuple[Reals, Reals, Callable[[Reals], Reals]]]:
        """Log of the curve over passes, its slopes, and how deviations follow from either."""
        sizes, cells, prompts = self._sizes, self.cells, self.prompts
        if sizes is not None:
            log_s, slopes = self._log_pass_s(vectors, cells.running, cells.kv_tokens)
            yield log_s - np.log(cells.typical_s), slopes, lambda each: sizes.deviations(each, self.form_log_sd)
        if len(prompts):
            log_s, slopes = self._log_pass_s(vectors, prompts.running, prompts.kv_tokens)
            factor, log_sd = self.names.index(_PROMPT_FACTOR), prompt_log_sd(prompts, cells)
            slopes[factor] = -1.0
            yield log_s - np.log(prompts.typical_s) - vectors[:, factor, None], slopes, lambda each: each / log_sd

    def pass_s(self, vectors: Reals, running: Reals, kv_tokens: Reals) -> Reals:
        """Seconds of passes along a new last axis."""
        return np.exp(self._log_pass_s(np.atleast_2d(vectors), running, kv_tokens)[0]).reshape(*vectors.shape[:-1], -1)

    def _log_pass_s(self, vectors: Reals, running: Reals, kv_tokens: Reals) -> tuple[Reals, Reals]:
        """Log seconds of passes, (vectors, passes), and their slopes by parameter."""
        of = {name: np.exp(vectors[:, number, None]) for number, name in enumerate(self.names)}
        log_running = np.log(running)
        log_flat = np.log(of["flat_s"]) + of["growth"] * log_running
        log_branches = of["sharpness"] * (np.log(of["per_request_s"]) + log_running - log_flat)
        log_sum = log_of_one_and(log_branches)
        computed = np.exp(log_branches - log_sum)
        work_s = np.exp(log_flat + log_sum / of["sharpness"])
        parts = {
            "flat_s": work_s * (1.0 - computed),
            "per_request_s": work_s * computed,
            "growth": work_s * (1.0 - computed) * of["growth"] * log_running,
            "sharpness": work_s * (computed * log_branches - log_sum) / of["sharpness"],
        }
        seconds = work_s
        if "experts_s" in of:
            unread = np.exp(-of["hit_rate"] * running)
            parts["experts_s"] = of["experts_s"] * (1.0 - unread)
            parts["hit_rate"] = of["experts_s"] * unread * of["hit_rate"] * running
            seconds = seconds + parts["experts_s"]
        if "overhead_s" in of:
            parts["overhead_s"] = np.broadcast_to(of["overhead_s"], work_s.shape)
            seconds = seconds + of["overhead_s"]
        if "kv_s_per_token" in of:
            parts["kv_s_per_token"] = of["kv_s_per_token"] * kv_tokens
            seconds = seconds + parts["kv_s_per_token"]
        nothing = np.zeros(work_s.shape)
        return np.log(seconds), np.stack([parts.get(name, nothing) / seconds for name in self.names])

    def scaled(self, vectors: Reals, log_factor: Reals | float) -> Reals:
        """Scale the vectors so that their curves are exp(log_factor) times as high everywhere; one factor per row."""
        is_time = np.array([name in TIMES for name in self.names], dtype=np.float64)
        return vectors + is_time * np.asarray(log_factor, dtype=np.float64)[..., None]

    def curve(self, vector: Reals) -> RooflineCurve:
        """Curve of one vector."""
        return RooflineCurve(**{name: value for name, value in self.named(vector).items() if name != _PROMPT_FACTOR})

    def named(self, vector: Reals) -> dict[str, float]:
        """Parameters by name."""
        return {name: float(np.exp(value)) for name, value in zip(self.names, vector, strict=True)}

    def starts(self) -> Reals:
        """Vectors to search from: what is expected, and the same with its hinge below, near and beyond the batches."""
        expected = np.linalg.solve(self._law_weights.T, self._law_means)
        if not len(self.cells):
            return expected[None, :].astype(np.float64)
        flat, slope = self.names.index("flat_s"), self.names.index("per_request_s")
        typical = Reference.of(self.cells)
        starts = np.tile(expected.astype(np.float64), (4, 1))
        starts[1:, flat] = math.log(0.5 * typical.pass_s)
        starts[1:, slope] = starts[1:, flat] - np.log(typical.running * np.array([0.5, 2.0, 8.0]))
        return starts

    def _expectations(self) -> Iterator[_Law]:
        """Yield what is expected of the parameters before any pass; each parameter occurs."""
        prior, hardware, shapes = self.prior, self.shape_prior, self.shapes
        typical = Reference.of(self.cells) if len(self.cells) else None
        sharpness = _SHARPNESS_UNKNOWN if prior is None else shapes.sharpness
        yield {"sharpness": 1.0}, _SHARPNESS_OF_EXPERTS if self.form == "expert_hit" else sharpness
        yield {"growth": 1.0}, shapes.growth
        if hardware is not None:
            yield {"flat_s": 1.0}, hardware.flat_s
            yield {"per_request_s": 1.0}, hardware.per_request_s
        elif typical is not None:
            yield {"flat_s": 1.0}, LogNormal(typical.pass_s, _LEVEL_LOG_SD)
            hinge = LogNormal(_HINGE_RATIO * typical.running, _HINGE_LOG_SD)
            yield {"flat_s": 1.0, "per_request_s": -1.0}, hinge
        if self.form == "expert_hit":
            yield from self._of_experts(hardware)
        if prior is not None:
            yield {"overhead_s": 1.0}, LogNormal(prior.overhead_s.median, _OVERHEAD_LOG_SD)
        kv = self._kv(typical)
        if kv is not None:
            yield {"kv_s_per_token": 1.0}, kv
        if len(self.prompts):
            yield {"prompt_factor": 1.0}, LogNormal(1.0, FACTOR_LOG_SD)

    def _of_experts(self, hardware: HardwarePrior | None) -> Iterator[_Law]:
        experts = None if hardware is None else hardware.experts
        if experts is None:
            yield {"experts_s": 1.0, "flat_s": -1.0}, LogNormal(1.0, _PART_LOG_SD)
        else:
            yield {"experts_s": 1.0}, experts.experts_s
        yield {"hit_rate": 1.0}, HIT_RATE if experts is None else experts.hit_rate

    def _kv(self, typical: Reference | None) -> LogNormal | None:
        """Return the expected KV term; None if resident tokens are unknown, so that the curve has none."""
        known = None if self.prior is None else self.prior.kv_s_per_token
        if typical is None or (typical.kv_tokens and known):
            return known
        return LogNormal(_KV_RATIO * typical.pass_s / typical.kv_tokens, _KV_LOG_SD) if typical.kv_tokens else None
