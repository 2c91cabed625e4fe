"""The fitted decode curve of a run: a sample of the curves that its passes and hardware allow, and their middle.

Predictions use the whole sample: it spreads beyond the batches of the run. Not covered: which of the engine's seconds
count as a pass (the caller decides), and engines that differ.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

import numpy as np
from scipy.special import ndtri

from rlscope.model.arrays import Reals
from rlscope.model.decode.curves import Form, FormCurve, Tilt
from rlscope.model.decode.density import CurveDensity
from rlscope.model.decode.measurements import DecodePoints, Grade, MeasuredCells, Rejection, Visited, gather
from rlscope.model.decode.posterior import (
    USUAL_SHAPES,
    Broad,
    FormModel,
    PassEvidence,
    Reference,
    ShapePrior,
    prompt_passes,
)
from rlscope.model.decode.prior import HardwarePrior
from rlscope.model.numerics.mcmc import anneal, draw, log_integral, maximise
from rlscope.model.system import DecodeCurve
from rlscope.model.warnings import ModelWarning

_MOVES: Final = 8
"""Moves of every vector at each temperature."""
_SETTLE_STEPS: Final = 40
"""Burn-in after the annealing, which leaves copies."""
_THIN_STEPS: Final = 20
_PARTS: Final = 25
"""Equally likely parts of the normal distribution of a size's error."""
_SAMPLE: Final = 480
"""Curves that the middle is computed from: its error is then 5% of their spread."""
_WALKERS: Final = 160
"""Vectors that are annealed: a mode with 5% of the probability has eight of them."""
_TILT: Final = 0.2
_TILT_OF_KNOWN: Final = 0.08
"""Standard deviation of d log t / d log b beyond the measured batches, besides the variation between draws of all
forms: `_TILT` if no device is known, `_TILT_OF_KNOWN` if one is. Estimated by leaving out devices and models of the
table of measured kernels."""
_FLAT_ELASTICITY: Final = 0.2
"""Elasticity d log t / d log b at the largest visited batches below which the slope is not seen: the p-norm's value at
half of its hinge, for p = 2."""
_FOLDS: Final = 4
_FEWEST_CELLS_TO_JUDGE: Final = 8
"""Minimum number of cells for a test of the form by leaving out a quarter."""
_DENSE_FORMS: Final[tuple[Form, ...]] = ("pnorm", "softplus", "sigmoid")
_WIDE_RANGE: Final = 8.0
"""Minimum range of batch sizes (largest over smallest) to distinguish experts from a hinge."""
_CLEARLY_BETTER: Final = 0.7
_GOOD_FIT: Final = 0.03
"""Error of the p-norm below which no other form is tried: the error that it reaches on kernels of dense models."""
_CLEARLY_LIKELIER: Final = 3.0
"""Ratio of the weights of two forms that does not flip with another seed or machine."""
_CENTRE_UNIT: Final = 0.5
"""Rounding of the center that sampling starts from, half of its smallest spread: the end of a search differs between
processors by about 1e-4, and draws about another center are other draws."""
_MIDDLE_BEYOND: Final = 4.0
"""The middle is computed from a quarter of the smallest batch seen to four times the largest."""
_MIDDLE_UNSEEN: Final = (1.0, 1024.0)
"""Range of the middle if no batch was seen."""
_MIDDLE_POINTS: Final = 24
_MIDDLE_ERROR: Final = 1e-2
"""Error of the middle in log time; parameters that hardly affect the curve stay at their median."""
_MIDDLE_SPREAD: Final = 0.1
"""Additional error of the middle, as a share of the spread of the draws."""
_USUAL_CONTEXT_TOKENS: Final = 2000.0
"""Context if none was seen; the middle hardly depends on it."""


class PassInterval(NamedTuple):
    """Seconds of a pass: the median of the sample, and the interval that holds `level` of it."""

    median_s: float
    low_s: float
    high_s: float


@dataclass(frozen=True, slots=True, eq=False)
class CurveFit:
    """A fitted decode curve, with measures of its reliability."""

    form: Form
    curve: DecodeCurve
    """Curve nearest to the median of the draws at every batch size."""
    draws: tuple[DecodeCurve, ...]
    """Equally likely posterior draws of the curve."""
    parameters: Mapping[str, float]
    """Parameters of the curve, by name; `residual` is the log deviation of cells from it beyond the expected part."""
    visited: Visited | None
    """None if no pass could be used."""
    cells: DecodePoints
    """Cells that were fitted."""
    mape_ratio: float | None
    """Relative mean absolute error over the cells, weighted by the square root of their rows; None without cells."""
    stall_ratio: float
    """Mean over typical time of a pass. The curve and the draws are scaled up by it, which assumes that stalls are
    equally frequent at every batch size. 1 if only means are known."""
    rejected: Mapping[Rejection, int]
    """Number of excluded rows, by reason."""
    warnings: tuple[ModelWarning, ...]
    """Questions that the fit could not settle."""
    form_weights: Mapping[Form, float] = field(default_factory=dict[Form, float])
    """Share of the draws of each form, by how well it explains the passes; empty if no forms were compared."""
    held_out: "HeldOut | None" = None
    """Fits to parts of the passes; None without passes."""

    @property
    def held_out_mape_ratio(self) -> float | None:
        """`mape_ratio` on quarters of the batch range that were left out, for the most probable curve given the others.

        None if there are too few cells. The first call makes four more fits.
        """
        return None if self.held_out is None else self.held_out.mape(self.form)

    def grade(self, running: float, kv_tokens: float | None = None) -> Grade:
        """Grade a pass over `running` requests with `kv_tokens` resident by its distance from the measurements.

        With one batch size and no hardware, everything beyond is assumed: passes over prompts are of another kind.
        """
        if self.visited is None:
            return "assumed"
        grade = self.visited.grade(running, kv_tokens)
        knows_slope = not {ModelWarning.ONE_BATCH_SIZE, ModelWarning.NO_HARDWARE_PRIOR} <= set(self.warnings)
        return grade if knows_slope or grade != "extrapolated" else "assumed"

    def pass_interval(self, running: float, kv_tokens: float, level: float = 0.9) -> PassInterval:
        """Seconds of a pass from the sample of curves, each with the error of a batch size about its form."""
        pass_s = np.array([float(curve.pass_s(running)) + curve.kv_s_per_token * kv_tokens for curve in self.draws])
        noise = self._log_sd(running, kv_tokens)
        pass_s = pass_s[:, None] * np.exp(noise * ndtri((np.arange(_PARTS) + 0.5) / _PARTS))
        low, median, high = np.quantile(pass_s, [(1 - level) / 2, 0.5, (1 + level) / 2])
        return PassInterval(float(median), float(low), float(high))

    def _log_sd(self, running: float, kv_tokens: float) -> float:
        """Log deviation of passes from the curve beyond its own: as seen within the run, as expected elsewhere."""
        if self.visited is None:
            return 0.0
        knows_context = self.visited.context_low_tokens is not None
        if self.grade(running, kv_tokens if knows_context else None) != "measured":
            return math.hypot(self.parameters["form_error"], self.parameters["residual"])
        cells = self.cells
        curve_s = self.curve.pass_s(cells.running) + self.curve.kv_s_per_token * np.nan_to_num(cells.kv_tokens)
        log_ratio = np.log(self.stall_ratio * cells.typical_s / curve_s)
        return float(np.sqrt(np.average(log_ratio**2, weights=np.sqrt(cells.rows))))


def fit_decode_curve(
    points: DecodePoints,
    prior: HardwarePrior | None,
    rng: np.random.Generator,
    *,
    form: Form | None = None,
    draw_count: int = 200,
    prefills: DecodePoints | None = None,
    shapes: ShapePrior = USUAL_SHAPES,
) -> CurveFit | None:
    """Fit a decode curve to measured passes; None if there is neither a usable pass nor a prior.

    Draws come from the posterior of passes and hardware, with Huber's loss on log time, and the curve is their middle.
    The most probable curve is not used, because it lies at the edge of what is possible if passes leave the slope open.
    Without a prior the passes alone decide, and beyond them the curve may be anything from flat to proportional. form
    None: the p-norm, or the expert form if the prior or the passes clearly require it. prefills: passes that computed
    prompts, where `running` is the tokens of a pass; decoding takes about as long.
    """
    cells = gather(points, None if prior is None else prior.least_pass_s)
    held_out = HeldOut(cells.points, prior)
    forms = (form,) if form else _forms_to_average(cells.points, prior, held_out)
    models = [model for each in forms if (model := _model(each, cells.points, prior, prefills, shapes))]
    if not models:
        return None
    mixture = _mixture([_sample(model, cells.points, rng) for model in models], rng)
    best = mixture.likeliest
    typical_middle = _middle(best.model, mixture, cells.points)
    stalls = np.log(cells.stall_ratio)
    middle = best.model.scaled(typical_middle[None, :], stalls)[0]
    visited = Visited.of(cells.points)
    return CurveFit(
        form=best.model.form,
        curve=best.model.curve(middle),
        draws=_tilted(mixture.curves(draw_count, stalls), cells.points, prior, rng),
        parameters={name: float(column[0]) for name, column in best.model.named(middle).items()},
        visited=visited,
        cells=cells.points,
        mape_ratio=_mape(best.model, typical_middle, cells.points),
        stall_ratio=cells.stall_ratio,
        rejected=cells.rejected,
        warnings=_warnings(best.model.curve(middle), visited, cells, prior),
        form_weights=mixture.weights,
        held_out=held_out,
    )


def _model(
    form: Form,
    cells: DecodePoints,
    prior: HardwarePrior | None,
    prefills: DecodePoints | None,
    shapes: ShapePrior = USUAL_SHAPES,
) -> FormModel | None:
    reference = Reference.of(cells) if len(cells) else None
    prompts = None if prefills is None else prompt_passes(prefills, cells)
    model = FormModel(form, prior, reference, prompts, shapes)
    return model if reference is not None or model.has_form_prior else None


def _most_probable(model: FormModel, cells: DecodePoints) -> Reals:
    return maximise(CurveDensity(model, PassEvidence.of(cells)), model.starts(), model.least)


class _Sampled(NamedTuple):
    """Posterior of one form."""

    model: FormModel
    vectors: Reals
    """Vectors in random order, anchored to the passes."""
    log_evidence: float


class _Mixture(NamedTuple):
    """Posteriors of several forms, and the vectors of each that make up the draws, in random order."""

    parts: tuple[_Sampled, ...]
    weights: Mapping[Form, float]
    chosen: tuple[tuple[int, int], ...]
    """Part and vector of each draw."""

    @property
    def likeliest(self) -> _Sampled:
        """Part with the most draws; the first part unless another is clearly likelier than by chance."""
        most = max(self.parts, key=lambda part: self.weights[part.model.form])
        first = self.parts[0]
        return most if self.weights[most.model.form] > _CLEARLY_LIKELIER * self.weights[first.model.form] else first

    def curves(self, count: int, log_factor: float) -> tuple[FormCurve, ...]:
        """Return the first draws, exp(log_factor) times as high."""
        scaled = [part.model.scaled(part.vectors, log_factor) for part in self.parts]
        return tuple(self.parts[part].model.curve(scaled[part][row]) for part, row in self.chosen[:count])

    def pass_s(self, running: Reals, kv_tokens: Reals) -> Reals:
        """Seconds of each draw's passes, one row per draw."""
        of_parts = [part.model.pass_s(part.vectors, running, kv_tokens) for part in self.parts]
        return np.stack([of_parts[part][row] for part, row in self.chosen])


def _tilted(
    curves: Sequence[FormCurve], cells: DecodePoints, prior: HardwarePrior | None, rng: np.random.Generator
) -> tuple[DecodeCurve, ...]:
    """Give each curve its own departure from the form beyond the largest batch."""
    if not len(cells):
        return tuple(curves)
    spread, largest = _TILT if prior is None else _TILT_OF_KNOWN, float(cells.running.max())
    tilts = spread * rng.standard_normal(len(curves))
    return tuple(replace(curve, tilt=Tilt(largest, float(tilt))) for curve, tilt in zip(curves, tilts, strict=True))


def _mixture(parts: Sequence[_Sampled], rng: np.random.Generator) -> _Mixture:
    """Draw each form in proportion to its probability given the passes, equal before them (Hoeting et al. 1999)."""
    evidence = np.array([part.log_evidence for part in parts])
    shares = np.exp(evidence - evidence.max())
    shares /= shares.sum()
    part = np.searchsorted(np.cumsum(shares)[:-1], (np.arange(_SAMPLE) + 0.5) / _SAMPLE)
    chosen = [(int(number), row) for row, number in enumerate(rng.permutation(part))]
    weights: dict[Form, float] = {each.model.form: float(share) for each, share in zip(parts, shares, strict=True)}
    return _Mixture(tuple(parts), weights, tuple(chosen))


def _sample(model: FormModel, cells: DecodePoints, rng: np.random.Generator) -> _Sampled:
    """Draw vectors from the posterior of one form, in random order, with its evidence."""
    log_density = CurveDensity(model, PassEvidence.of(cells))
    best = maximise(log_density, model.starts(), model.least)
    broad = Broad.of(model, np.round(best / _CENTRE_UNIT) * _CENTRE_UNIT)
    found = anneal(log_density, broad.log_density, broad.draw(_WALKERS, rng), rng, moves=_MOVES)
    drawn = draw(log_density, found, rng, settle=_SETTLE_STEPS, thin=_THIN_STEPS, count=_SAMPLE)
    anchored = _anchored(model, rng.permutation(drawn), cells)
    level_sd = model.row_noise(anchored) / np.sqrt(max(cells.rows.sum(), 1.0))
    vectors = model.scaled(anchored, level_sd * rng.standard_normal(len(anchored)))
    return _Sampled(model, vectors, log_integral(log_density, drawn, rng))


def _anchored(model: FormModel, vectors: Reals, cells: DecodePoints) -> Reals:
    """Scale each vector so that its curve meets the passes at their most frequent batch sizes.

    The form's own error is an error of shape: at the batch sizes that the run measured most, predictions should not be
    as wide as elsewhere. The factor is the median over rows of measured over fitted.
    """
    if not len(cells):
        return vectors
    log_ratio = np.log(cells.typical_s / model.pass_s(vectors, cells.running, cells.kv_tokens))
    order = np.argsort(log_ratio, axis=1)
    reached = np.cumsum(cells.rows[order], axis=1) >= cells.rows.sum() / 2
    middle = np.take_along_axis(order, np.argmax(reached, axis=1)[:, None], axis=1)
    return model.scaled(vectors, np.take_along_axis(log_ratio, middle, axis=1)[:, 0])


def _middle(model: FormModel, mixture: _Mixture, cells: DecodePoints) -> Reals:
    """Vector whose curve is nearest to the median of the draws, in log time, with and without resident KV."""
    low, high = _MIDDLE_UNSEEN
    context_tokens = _USUAL_CONTEXT_TOKENS
    if len(cells):
        low = max(1.0, cells.running.min() / _MIDDLE_BEYOND)
        high = cells.running.max() * _MIDDLE_BEYOND
        context_tokens = float(np.median(cells.kv_tokens / cells.running))
    running = np.tile(np.geomspace(low, high, _MIDDLE_POINTS), 2)
    kv_tokens = running * np.repeat([0.0, context_tokens], _MIDDLE_POINTS)
    log_s = np.log(mixture.pass_s(running, kv_tokens))
    median_s, error = np.exp(np.median(log_s, axis=0)), np.hypot(_MIDDLE_ERROR, _MIDDLE_SPREAD * log_s.std(axis=0))
    sample = mixture.likeliest.vectors
    # In the range of the run, its passes weigh as much as the median of the draws.
    weight = _MIDDLE_POINTS * np.sqrt(cells.rows) / max(np.sqrt(cells.rows).sum(), 1.0)
    typical, spread = np.median(sample, axis=0), np.std(sample, axis=0)

    def nearness(vectors: Reals) -> Reals:
        with np.errstate(invalid="ignore", over="ignore"):
            distance = np.log(model.pass_s(vectors, running, kv_tokens) / median_s)
            missed = np.log(model.pass_s(vectors, cells.running, cells.kv_tokens) / cells.typical_s) / _MIDDLE_ERROR
        near = (
            -np.einsum("ij,j->i", missed**2, weight)
            - ((distance / error) ** 2).sum(axis=-1)
            - (((vectors - typical) / spread) ** 2).sum(axis=-1)
        )
        return np.where(np.isfinite(near), near, -np.inf)

    nearest = maximise(nearness, typical[None, :], model.least)
    return _anchored(model, nearest[None, :], cells)[0]


def _mape(model: FormModel, vector: Reals, cells: DecodePoints) -> float | None:
    """Error over cells weighted by the square root of their rows: no single batch size and no single row dominates."""
    if not len(cells):
        return None
    error_ratio = np.abs(model.pass_s(vector, cells.running, cells.kv_tokens) / cells.typical_s - 1)
    return float(np.average(error_ratio, weights=np.sqrt(cells.rows)))


class HeldOut:
    """Errors of forms on passes that they were not fitted to; each form is fitted once."""

    def __init__(self, cells: DecodePoints, prior: HardwarePrior | None) -> None:
        self._cells, self._prior = cells, prior
        self._known: dict[Form, float | None] = {}

    def mape(self, form: Form) -> float | None:
        """Error on each quarter of the batch sizes, fitted to the other three: the outer two are extrapolations."""
        if form not in self._known:
            self._known[form] = self._mape(form) if len(self._cells) >= _FEWEST_CELLS_TO_JUDGE else None
        return self._known[form]

    def _mape(self, form: Form) -> float:
        cells, errors = self._cells, list[float]()
        for left_out in np.array_split(np.argsort(cells.running, kind="stable"), _FOLDS):
            kept = np.ones(len(cells), dtype=np.bool_)
            kept[left_out] = False
            model = FormModel(form, self._prior, Reference.of(cells.where(kept)))
            error = _mape(model, _most_probable(model, cells.where(kept)), cells.where(~kept))
            errors += [] if error is None else [error]
        return float(np.mean(errors))


def _forms_to_average(cells: DecodePoints, prior: HardwarePrior | None, held_out: HeldOut) -> tuple[Form, ...]:
    """Return the expert form if the model or held-out passes require it, else all dense forms."""
    if prior is not None and prior.experts is not None:
        return ("expert_hit",)
    if len(cells) < _FEWEST_CELLS_TO_JUDGE or cells.running.max() < _WIDE_RANGE * cells.running.min():
        return _DENSE_FORMS
    model = FormModel("pnorm", prior, Reference.of(cells))
    fitted = _mape(model, _most_probable(model, cells), cells)
    if fitted is None or fitted < _GOOD_FIT:
        return _DENSE_FORMS
    pnorm, experts = held_out.mape("pnorm"), held_out.mape("expert_hit")
    return ("expert_hit",) if pnorm and experts and experts < _CLEARLY_BETTER * pnorm else _DENSE_FORMS


def _warnings(
    curve: DecodeCurve, visited: Visited | None, cells: MeasuredCells, prior: HardwarePrior | None
) -> tuple[ModelWarning, ...]:
    if visited is None:
        return (ModelWarning.NO_PASSES,)
    high = visited.batch_high
    elasticity = float(np.log(curve.pass_s(1.05 * high) / curve.pass_s(high / 1.05)) / np.log(1.05**2))
    found = {
        ModelWarning.NO_HARDWARE_PRIOR: prior is None,
        ModelWarning.ONE_BATCH_SIZE: visited.one_batch_size,
        ModelWarning.BATCH_AND_KV_MOVE_TOGETHER: visited.kv_follows_batch,
        ModelWarning.KV_NOT_RECORDED: not cells.knows_kv,
        ModelWarning.SLOPE_NOT_SEEN: not visited.one_batch_size and elasticity < _FLAT_ELASTICITY,
    }
    return tuple(warning for warning, holds in found.items() if holds)
