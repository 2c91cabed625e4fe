"""Decode curves: seconds of one decode pass by batch size, in the forms that are fitted to a run's passes.

Each form is a frozen dataclass: work by batch size, plus a constant overhead, plus a term for the tokens resident in
the KV cache. The equations are also available as functions of arrays, so that a fit can try many parameters at once.
Not covered: prefill, and passes that verify drafted tokens.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Literal, NamedTuple

import numpy as np

from rlscope.model.arrays import Counts, Reals
from rlscope.model.system import DecodeCurve

Form = Literal["pnorm", "softplus", "sigmoid", "expert_hit"]

Numbers = Reals | float


def pnorm_s(running: Numbers, flat_s: Numbers, hinge: Numbers, sharpness: Numbers, growth: Numbers = 0.0) -> Reals:
    """((a b^g)^p + (c b)^p)^(1/p) with c = a / hinge: weights streamed once, or computed for each request.

    A smooth roofline (Williams, Waterman and Patterson 2009; the p-norm as its smoothing is our derivation): never
    below max(a, c b), and grows with b. The flat branch grows as b^g, because kernels that stream the weights do so
    slightly slower for more rows. running: requests. flat_s: seconds. The result is in seconds.
    """
    log_flat = growth * np.log(running)
    log_ratio = sharpness * (np.log(running) - np.log(hinge) - log_flat)
    return flat_s * np.exp(log_flat + _log_of_one_and(log_ratio) / sharpness)


def softplus_s(
    running: Numbers, flat_s: Numbers, hinge: Numbers, width: Numbers, rise: Numbers, growth: Numbers = 0.0
) -> Reals:
    """a (b^g + r w ln(1 + e^((b / hinge - 1) / w))): flat, then affine with slope r a / hinge. Own derivation.

    width and rise are ratios: of the hinge, and of the slope to that of a line through the origin. growth: as in
    `pnorm_s`.
    """
    return flat_s * (np.power(running, growth) + rise * width * _log_of_one_and((running / hinge - 1) / width))


def sigmoid_s(
    running: Numbers,
    flat_s: Numbers,
    hinge: Numbers,
    width: Numbers,
    rise: Numbers,
    step: Numbers,
    growth: Numbers = 0.0,
) -> Reals:
    """a b^g + s a (e + r (b / hinge - 1)), s = logistic((b / hinge - 1) / w): flat and affine, blended.

    This is the form of Applied Compute's talk on asynchronous RL (2025), where r is 1 and e is 0; here hinge and branch
    are free. It dips below the flat branch before the hinge, by 0.28 r a w at most, so it does not grow everywhere.
    """
    past = running / hinge - 1
    return flat_s * (np.power(running, growth) + _logistic(past / width) * (step + rise * past))


def expert_hit_s(
    running: Numbers, flat_s: Numbers, experts_s: Numbers, hit_rate: Numbers, per_request_s: Numbers
) -> Reals:
    """a0 + a1 (1 - e^(-r b)) + c b: every expert that a token is routed to is read once.

    k of E experts drawn by each of b tokens leave 1 - (1 - k/E)^b of them hit if tokens choose independently, so r =
    -ln(1 - k/E) then, and more or less if they do not. Own derivation from the expectation of distinct draws.
    """
    return flat_s - experts_s * np.expm1(-hit_rate * running) + per_request_s * running


class Tilt(NamedTuple):
    """Departure of a curve from its form beyond the measured batches."""

    running: float
    """Requests of the largest measured batch."""
    elasticity: Numbers
    """Increase of d log t / d log b beyond it, relative to the form."""


def tilted_s(work_s: Callable[[Numbers], Reals], running: Numbers, tilt: Tilt | None) -> Reals:
    """Work of a form up to a batch size, and beyond it times a power of the batch over that size.

    Beyond, it stays between flat and proportional. Own choice: no form is known to hold outside the measurements.
    """
    form_s = work_s(running)
    if tilt is None:
        return form_s
    beyond, seen_s = np.maximum(np.asarray(running, dtype=np.float64) / tilt.running, 1.0), work_s(tilt.running)
    return np.where(beyond > 1.0, np.clip(form_s * beyond**tilt.elasticity, seen_s, seen_s * beyond), form_s)


@dataclass(frozen=True, slots=True)
class PNormCurve:
    """Default curve: `pnorm_s`, an overhead, and the KV term."""

    flat_s: float
    """Seconds to stream the weights: a pass over few requests."""
    per_request_s: float
    """Seconds that each request adds in compute-bound passes."""
    sharpness: float
    """Exponent p: 1 adds the two branches, a larger value is nearer to their maximum."""
    overhead_s: float = 0.0
    kv_s_per_token: float = 0.0
    growth: float = 0.0
    """Elasticity of the flat branch."""
    tilt: Tilt | None = None

    def pass_s(self, running: Reals | float) -> Reals:
        """Seconds of a pass over `running` requests that hold no KV."""
        hinge = self.flat_s / self.per_request_s
        shape = (self.flat_s, hinge, self.sharpness, self.growth)
        return tilted_s(lambda b: pnorm_s(_at_least_one_part(b), *shape), running, self.tilt) + self.overhead_s


@dataclass(frozen=True, slots=True)
class SoftplusCurve:
    """Flat, then affine, with a soft hinge: a second opinion on the p-norm."""

    flat_s: float
    hinge: float
    """Requests at which the branches meet."""
    width_ratio: float
    rise_ratio: float
    """Slope of the affine branch over flat_s / hinge."""
    overhead_s: float = 0.0
    kv_s_per_token: float = 0.0
    growth: float = 0.0
    """Elasticity of the flat branch."""
    tilt: Tilt | None = None

    def pass_s(self, running: Reals | float) -> Reals:
        """Seconds of a pass over `running` requests that hold no KV."""
        shape = (self.flat_s, self.hinge, self.width_ratio, self.rise_ratio, self.growth)
        return tilted_s(lambda b: softplus_s(b, *shape), running, self.tilt) + self.overhead_s


@dataclass(frozen=True, slots=True)
class SigmoidCurve:
    """Two branches blended by a logistic: another form that a recommendation must hold under (`sigmoid_s`)."""

    flat_s: float
    hinge: float
    """Requests at which the branches meet."""
    width_ratio: float
    rise_ratio: float
    """Slope of the affine branch over flat_s / hinge."""
    step_ratio: float = 0.0
    """Height of the affine branch above the flat one at the hinge, over flat_s."""
    overhead_s: float = 0.0
    kv_s_per_token: float = 0.0
    growth: float = 0.0
    """Elasticity of the flat branch."""
    tilt: Tilt | None = None

    def pass_s(self, running: Reals | float) -> Reals:
        """Seconds of a pass over `running` requests that hold no KV."""
        shape = (self.flat_s, self.hinge, self.width_ratio, self.rise_ratio, self.step_ratio, self.growth)
        return tilted_s(lambda b: sigmoid_s(b, *shape), running, self.tilt) + self.overhead_s


@dataclass(frozen=True, slots=True)
class ExpertHitCurve:
    """Curve of mixtures of experts: a pass reads the experts that its tokens hit."""

    flat_s: float
    """Seconds to read attention, shared and dense layers, as every pass does."""
    experts_s: float
    """Seconds to read all experts."""
    hit_rate: float
    """Rate r in 1 - e^(-r b): share of the experts not yet hit that one more token hits."""
    per_request_s: float
    overhead_s: float = 0.0
    kv_s_per_token: float = 0.0
    tilt: Tilt | None = None

    def pass_s(self, running: Reals | float) -> Reals:
        """Seconds of a pass over `running` requests that hold no KV."""
        shape = (self.flat_s, self.experts_s, self.hit_rate, self.per_request_s)
        return tilted_s(lambda b: expert_hit_s(b, *shape), running, self.tilt) + self.overhead_s


FormCurve = PNormCurve | SoftplusCurve | SigmoidCurve | ExpertHitCurve


@dataclass(frozen=True, slots=True)
class SpedUpCurve:
    """A decode curve made faster by a factor."""

    curve: DecodeCurve
    speed: float

    @property
    def kv_s_per_token(self) -> float:
        """Seconds that each resident token adds to a pass."""
        return self.curve.kv_s_per_token / self.speed

    def pass_s(self, running: Reals | float) -> Reals:
        """Seconds of a pass over `running` requests that hold no KV."""
        return self.curve.pass_s(running) / self.speed


@dataclass(frozen=True, slots=True)
class OccupiedCurve:
    """Decode curve of an engine that does other work after a pass, for each token that the pass made."""

    curve: DecodeCurve
    work_s_per_token: float

    @property
    def kv_s_per_token(self) -> float:
        """Seconds that each resident token adds to a pass."""
        return self.curve.kv_s_per_token

    def pass_s(self, running: Reals | float) -> Reals:
        """Seconds of a pass over `running` requests that hold no KV, including the work that follows it."""
        return self.curve.pass_s(running) + self.work_s_per_token * np.asarray(running, dtype=np.float64)


@dataclass(frozen=True, slots=True, eq=False)
class CurvePerLine:
    """Many curves evaluated at once: the last axis of the argument has one curve per entry."""

    parts: tuple[tuple[Counts, DecodeCurve], ...]
    """Entries whose curves have one form, and that form with an array over them for each parameter."""
    kv_s_per_token: Reals

    def pass_s(self, running: Reals) -> Reals:
        """Seconds of passes over `running` requests that hold no KV."""
        if len(self.parts) == 1:
            return self.parts[0][1].pass_s(running)
        pass_s = np.empty(running.shape)
        for entries, curve in self.parts:
            pass_s[..., entries] = curve.pass_s(running[..., entries])
        return pass_s


def curve_per_line(curves: Sequence[DecodeCurve], lines: int) -> CurvePerLine | None:
    """Combine the curves, each for `lines` lines in a row; None if one of them has a form not known here."""
    kinds = [_kind(curve) for curve in curves]
    if None in kinds:
        return None
    parts: list[tuple[Counts, DecodeCurve]] = []
    for kind in dict.fromkeys(kinds):
        members = np.array([number for number, each in enumerate(kinds) if each == kind])
        entries = (members[:, None] * lines + np.arange(lines)).ravel()
        parts.append((entries, _stacked([curves[number] for number in members], lines)))
    return CurvePerLine(tuple(parts), np.repeat([curve.kv_s_per_token for curve in curves], lines))


def _kind(curve: DecodeCurve) -> tuple[object, ...] | None:
    """Return a key of the curve's kind; curves of one kind differ only in numbers."""
    if isinstance(curve, SpedUpCurve | OccupiedCurve):
        inner = _kind(curve.curve)
        return None if inner is None else (type(curve), *inner)
    return (type(curve), curve.tilt and curve.tilt.running) if isinstance(curve, FormCurve) else None


def _stacked(curves: Sequence[DecodeCurve], lines: int) -> DecodeCurve:
    """Stack curves into one of their kind; its equations take arrays as well as numbers."""
    first = curves[0]
    if isinstance(first, SpedUpCurve | OccupiedCurve):
        outer = [curve for curve in curves if isinstance(curve, SpedUpCurve | OccupiedCurve)]
        return replace(first, curve=_stacked([each.curve for each in outer], lines), **_columns(outer, lines))
    formed = [curve for curve in curves if isinstance(curve, FormCurve)]
    tilts = [curve.tilt for curve in formed if curve.tilt is not None]
    tilt = (
        Tilt(tilts[0].running, np.repeat(np.array([each.elasticity for each in tilts], dtype=np.float64), lines))
        if tilts
        else None
    )
    return replace(formed[0], tilt=tilt, **_columns(formed, lines))


def _columns(curves: Sequence[FormCurve | SpedUpCurve | OccupiedCurve], lines: int) -> dict[str, Reals]:
    names = [each.name for each in fields(curves[0]) if each.name not in ("curve", "tilt")]
    return {name: np.repeat([getattr(curve, name) for curve in curves], lines) for name in names}


def _at_least_one_part(running: Numbers) -> Reals:
    """Clip to at least one part of a request: no request at all costs the flat branch, without taking log 0."""
    return np.maximum(running, 1e-9)


def _log_of_one_and(log_value: Numbers) -> Reals:
    """ln(1 + e^x), as exact as logaddexp(0, x) and several times as fast: numpy has no vector code for that."""
    return np.maximum(log_value, 0.0) + np.log1p(np.exp(-np.abs(log_value)))


def _logistic(value: Numbers) -> Reals:
    """1 / (1 + e^-x), in a form that never overflows; exact up to rounding of 1."""
    return 0.5 + 0.5 * np.tanh(0.5 * value)
