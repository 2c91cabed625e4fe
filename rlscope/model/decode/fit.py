"""The fitted decode curve of a run, and draws of it: the curves that its passes and hardware allow.

The curve is the best one by robust least squares. Each draw is fitted to passes and expectations that are moved by
their errors (randomized maximum a posteriori, Bardsley et al. 2014), so that draws spread where nothing was measured.
Not covered: which of the engine's seconds count as a pass (the caller decides), and engines that differ.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from rlscope.model.arrays import Reals
from rlscope.model.decode.curves import Form, RooflineCurve
from rlscope.model.decode.evidence import (
    RESIDUAL_LOG_SD,
    ROW_LOG_SD,
    CurveEvidence,
    prompt_passes,
)
from rlscope.model.decode.measurements import NO_POINTS, DecodePoints, Grade, Visited, gather
from rlscope.model.decode.prior import USUAL_SHAPES, HardwarePrior, ShapePrior
from rlscope.model.estimate import Estimate
from rlscope.model.numerics.least_squares import solve
from rlscope.model.numerics.stratified import normals, sorted_normals
from rlscope.model.warnings import ModelWarning

_PARTS: Final = 25
"""Equally likely parts of the normal distribution of a size's error."""
_TILT: Final = 0.2
_TILT_OF_KNOWN: Final = 0.06
"""Standard deviation of d log t / d log b beyond the measured batches, besides the variation between draws of the form:
`_TILT` if no device is known, `_TILT_OF_KNOWN` if one is. Estimated by leaving out devices and models of the table of
measured kernels."""
_FLAT_ELASTICITY: Final = 0.2
"""Elasticity d log t / d log b at the largest visited batches below which the slope is not seen: the p-norm's value at
half of its hinge, for p = 2."""
_FEWEST_CELLS_TO_JUDGE: Final = 8
"""Minimum number of cells to compare two forms."""
_WIDE_RANGE: Final = 8.0
"""Minimum range of batch sizes (largest over smallest) to distinguish experts from a hinge."""
_CLEARLY_BETTER: Final = 0.7
_GOOD_FIT: Final = 0.03
"""Error of the p-norm below which no other form is tried: the error that it reaches on kernels of dense models."""


@dataclass(frozen=True, slots=True, eq=False)
class CurveFit:
    """A fitted decode curve, with measures of its reliability."""

    form: Form
    curve: RooflineCurve
    """Best curve. Like the draws, it is scaled up by the `stall_ratio` of the cells, which assumes that stalls are
    equally frequent at every batch size."""
    draws: tuple[RooflineCurve, ...]
    """Equally likely posterior draws of the curve."""
    warnings: tuple[ModelWarning, ...]
    """Questions that the fit could not settle."""
    parameters: Mapping[str, float] = field(default_factory=dict[str, float])
    """Parameters of the curve, by name."""
    form_error: float = 0.0
    """Log deviation of passes of another batch size from the curve."""
    visited: Visited | None = None
    """None if no pass could be used."""
    cells: DecodePoints = NO_POINTS
    """Cells that were fitted."""
    mape_ratio: float | None = None
    """Relative mean absolute error over the cells, weighted by the square root of their rows; None without cells."""

    def grade(self, running: float, kv_tokens: float | None = None) -> Grade:
        """Grade a pass over `running` requests with `kv_tokens` resident by its distance from the measurements.

        With one batch size and no hardware, everything beyond is assumed: passes over prompts are of another kind.
        """
        if self.visited is None:
            return "assumed"
        grade = self.visited.grade(running, kv_tokens)
        knows_slope = not {ModelWarning.ONE_BATCH_SIZE, ModelWarning.NO_HARDWARE_PRIOR} <= set(self.warnings)
        return grade if knows_slope or grade != "extrapolated" else "assumed"

    def pass_interval(self, running: float, kv_tokens: float) -> Estimate:
        """Seconds of a pass from the draws, each with the error of a batch size about its form."""
        return self.pass_intervals(np.array([running]), np.array([kv_tokens]))[0]

    def pass_intervals(self, running: Reals, kv_tokens: Reals) -> list[Estimate]:
        """Seconds of several passes, as `pass_interval` gives them for one; much faster than one by one."""
        drawn_s = np.array([curve.decode_s(running, kv_tokens) for curve in self.draws])
        parts = sorted_normals(_PARTS)
        intervals: list[Estimate] = []
        for requests, tokens, pass_s in zip(running.tolist(), kv_tokens.tolist(), drawn_s.T, strict=True):
            noisy_s = pass_s[:, None] * np.exp(self._log_sd(requests, tokens) * parts)
            intervals.append(Estimate.of(noisy_s))
        return intervals

    def _log_sd(self, running: float, kv_tokens: float) -> float:
        """Log deviation of passes from the curve beyond its own: as seen within the run, as expected elsewhere."""
        if self.visited is None:
            return 0.0
        if self.grade(running, kv_tokens if self.visited.knows_context else None) != "measured":
            return self.form_error
        cells = self.cells
        curve_s = self.curve.decode_s(cells.running, np.nan_to_num(cells.kv_tokens))
        log_ratio = np.log(cells.stall_ratio * cells.typical_s / curve_s)
        return float(np.sqrt(np.average(log_ratio**2, weights=np.sqrt(cells.rows))))


def fit_decode_curve(
    points: DecodePoints,
    prior: HardwarePrior | None,
    rng: np.random.Generator,
    *,
    form: Form | None = None,
    draw_count: int = 200,
    prefills: DecodePoints = NO_POINTS,
    shapes: ShapePrior = USUAL_SHAPES,
) -> CurveFit | None:
    """Fit a decode curve to measured passes; None if there is neither a usable pass nor a prior.

    Without a prior the passes alone decide, and beyond them the curve may be anything from flat to proportional. form
    None: that of a dense model, or of a mixture of experts if the prior or the passes clearly require it. prefills:
    passes that computed prompts, where `running` is the tokens of a pass; decoding takes about as long.
    """
    cells = gather(points)
    form = form or _likely_form(cells, prior)
    evidence = CurveEvidence(form, cells, prior, prompt_passes(prefills, cells), shapes)
    if not len(cells) and evidence.shape_prior is None:
        return None
    evidence = evidence.with_own_error(_best(evidence))
    best = _best(evidence)
    typical, stalls = _anchored(evidence, best[None, :])[0], np.log(cells.stall_ratio)
    largest = float(cells.running.max()) if len(cells) else math.inf
    curve = replace(evidence.curve(evidence.scaled(typical, stalls)), measured_running=largest)
    drawn = evidence.scaled(_draws(evidence, best, rng, draw_count), stalls)
    tilt_sd = _TILT if prior is None else _TILT_OF_KNOWN
    tilts = (tilt_sd * normals(rng, draw_count)).tolist() if len(cells) else [0.0] * draw_count
    visited = Visited.of(cells)
    return CurveFit(
        form=form,
        curve=curve,
        draws=tuple(
            replace(evidence.curve(row), measured_running=largest, tilt=tilt)
            for row, tilt in zip(drawn, tilts, strict=True)
        ),
        parameters=evidence.named(evidence.scaled(typical, stalls)),
        form_error=math.hypot(evidence.form_log_sd, RESIDUAL_LOG_SD),
        visited=visited,
        cells=cells,
        mape_ratio=_mape(evidence, typical),
        warnings=_warnings(curve, visited, prior),
    )


def _best(evidence: CurveEvidence) -> Reals:
    ends, costs = solve(lambda vectors, _: evidence.linearized(vectors), evidence.starts())
    return ends[int(np.argmin(costs))]


def _draws(evidence: CurveEvidence, best: Reals, rng: np.random.Generator, count: int) -> Reals:
    """Fit each draw to evidence that is moved by its errors; in pairs moved either way, so that their mean is exact."""
    residuals = sum(part.shape[1] for part in evidence.linearized(best[None, :])[:2])
    half = rng.standard_normal(((count + 1) // 2, residuals))
    noise = np.concatenate([half, -half])[:count]
    starts = np.tile(best, (count, 1))
    drawn, _ = solve(lambda vectors, numbers: evidence.linearized(vectors, noise[numbers]), starts)
    anchored, cells = _anchored(evidence, drawn), evidence.cells
    level_sd = ROW_LOG_SD / math.sqrt(max(float(cells.rows.sum()), 1.0))
    return evidence.scaled(anchored, level_sd * rng.standard_normal(count))


def _anchored(evidence: CurveEvidence, vectors: Reals) -> Reals:
    """Scale each vector so that its curve meets the passes at their most frequent batch sizes.

    The form's own error is an error of shape: at the batch sizes that the run measured most, predictions should not be
    as wide as elsewhere. The factor is the median over rows of measured over fitted.
    """
    cells = evidence.cells
    if not len(cells):
        return vectors
    log_ratio = np.log(cells.typical_s / evidence.pass_s(vectors, cells.running, cells.kv_tokens))
    order = np.argsort(log_ratio, axis=1)
    reached = np.cumsum(cells.rows[order], axis=1) >= cells.rows.sum() / 2
    middle = np.take_along_axis(order, np.argmax(reached, axis=1)[:, None], axis=1)
    return evidence.scaled(vectors, np.take_along_axis(log_ratio, middle, axis=1)[:, 0])


def _mape(evidence: CurveEvidence, vector: Reals) -> float | None:
    """Error over cells weighted by the square root of their rows: no single batch size and no single row dominates."""
    cells = evidence.cells
    if not len(cells):
        return None
    error_ratio = np.abs(evidence.pass_s(vector, cells.running, cells.kv_tokens) / cells.typical_s - 1)
    return float(np.average(error_ratio, weights=np.sqrt(cells.rows)))


def _likely_form(cells: DecodePoints, prior: HardwarePrior | None) -> Form:
    """Return the form with experts if the model has some, or if it is unknown and its passes require it."""
    if prior is not None:
        return "pnorm" if prior.experts is None else "expert_hit"
    if len(cells) < _FEWEST_CELLS_TO_JUDGE or cells.running.max() < _WIDE_RANGE * cells.running.min():
        return "pnorm"
    dense = _error(CurveEvidence("pnorm", cells, prior))
    needs_experts = dense >= _GOOD_FIT and _error(CurveEvidence("expert_hit", cells, prior)) < _CLEARLY_BETTER * dense
    return "expert_hit" if needs_experts else "pnorm"


def _error(evidence: CurveEvidence) -> float:
    return _mape(evidence, _best(evidence)) or 0.0


def _warnings(curve: RooflineCurve, visited: Visited | None, prior: HardwarePrior | None) -> tuple[ModelWarning, ...]:
    if visited is None:
        return (ModelWarning.NO_PASSES,)
    found = {
        ModelWarning.NO_HARDWARE_PRIOR: prior is None,
        ModelWarning.ONE_BATCH_SIZE: visited.one_batch_size,
        ModelWarning.BATCH_AND_KV_MOVE_TOGETHER: visited.kv_follows_batch,
        ModelWarning.KV_NOT_RECORDED: not visited.knows_context,
        ModelWarning.SLOPE_NOT_SEEN: not visited.one_batch_size
        and curve.elasticity(visited.batch_high) < _FLAT_ELASTICITY,
    }
    return tuple(warning for warning, holds in found.items() if holds)
