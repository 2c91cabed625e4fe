"""The decode curve: seconds of one decode pass by batch size and resident tokens.

A pass reads the weights once or computes each request, whichever takes longer; a mixture of experts also reads the
experts that its tokens hit. A constant overhead and a term for the tokens resident in the KV cache come on top. All
equations take arrays as well as numbers, so that many curves can be evaluated at once. Not covered: prefill, and passes
that verify drafted tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Literal, NamedTuple

import numpy as np

from rlscope.model.arrays import Counts, Reals
from rlscope.model.system import DecodeCurve

Form = Literal["pnorm", "expert_hit"]
"""pnorm: a dense model. expert_hit: the same, and the time to read the experts that the tokens hit."""

Numbers = Reals | float


def pnorm_s(running: Numbers, flat_s: Numbers, per_request_s: Numbers, sharpness: Numbers, growth: Numbers) -> Reals:
    """((a b^g)^p + (c b)^p)^(1/p): weights streamed once, or computed for each request.

    A smooth roofline (Williams, Waterman and Patterson 2009; the p-norm as its smoothing is our derivation): never
    below max(a, c b), and grows with b. The flat branch grows as b^g, because kernels that stream the weights do so
    slightly slower for more rows. running: requests. The result is in seconds.
    """
    log_running = np.log(running)
    log_ratio = sharpness * (np.log(per_request_s) - np.log(flat_s) + (1.0 - growth) * log_running)
    return flat_s * np.exp(growth * log_running + _log_of_one_and(log_ratio) / sharpness)


def experts_hit_s(running: Numbers, experts_s: Numbers, hit_rate: Numbers) -> Reals:
    """a (1 - e^(-r b)): every expert that a token is routed to is read once.

    k of E experts drawn by each of b tokens leave 1 - (1 - k/E)^b of them hit if tokens choose independently, so r =
    -ln(1 - k/E) then, and more or less if they do not. Own derivation from the expectation of distinct draws.
    """
    return -experts_s * np.expm1(-hit_rate * np.asarray(running, dtype=np.float64))


class Tilt(NamedTuple):
    """Departure of a curve from its form beyond the measured batches."""

    running: float
    """Requests of the largest measured batch."""
    elasticity: Numbers
    """Increase of d log t / d log b beyond it, relative to the form."""


@dataclass(frozen=True, slots=True)
class RooflineCurve:
    """A smooth roofline, the experts that a batch hits, an overhead, and the KV term."""

    flat_s: float
    """Seconds to stream the weights that every pass reads: a pass over few requests."""
    per_request_s: float
    """Seconds that each request adds in compute-bound passes."""
    sharpness: float
    """Exponent p: 1 adds the two branches, a larger value is nearer to their maximum."""
    overhead_s: float = 0.0
    kv_s_per_token: float = 0.0
    growth: float = 0.0
    """Elasticity of the flat branch."""
    tilt: Tilt | None = None
    experts_s: float = 0.0
    """Seconds to read all experts; 0 for a dense model."""
    hit_rate: float = 0.0
    """Rate r in 1 - e^(-r b): share of the experts not yet hit that one more token hits."""

    def pass_s(self, running: Reals | float) -> Reals:
        """Seconds of a pass over `running` requests that hold no KV.

        Beyond the tilt's batch, the work is that of the form times a power of the batch over that size, between flat
        and proportional. Own choice: no form is known to hold outside the measurements.
        """
        work_s, tilt = self._work_s(running), self.tilt
        if tilt is not None:
            beyond = np.maximum(np.asarray(running, dtype=np.float64) / tilt.running, 1.0)
            seen_s = self._work_s(tilt.running)
            tilted_s = np.clip(work_s * beyond**tilt.elasticity, seen_s, seen_s * beyond)
            work_s = np.where(beyond > 1.0, tilted_s, work_s)
        return work_s + self.overhead_s

    def _work_s(self, running: Numbers) -> Reals:
        # No request at all costs the flat branch, without taking the log of 0.
        shape = (self.flat_s, self.per_request_s, self.sharpness, self.growth)
        work_s = pnorm_s(np.maximum(running, 1e-9), *shape)
        return work_s + experts_hit_s(running, self.experts_s, self.hit_rate) if np.any(self.experts_s) else work_s


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


def curve_per_line(curves: Sequence[DecodeCurve], lines: int) -> CurvePerLine:
    """Combine the curves, each for `lines` lines in a row."""
    kinds = [_kind(curve) for curve in curves]
    parts: list[tuple[Counts, DecodeCurve]] = []
    for kind in dict.fromkeys(kinds):
        members = np.array([number for number, each in enumerate(kinds) if each == kind])
        entries = (members[:, None] * lines + np.arange(lines)).ravel()
        parts.append((entries, _stacked([curves[number] for number in members], lines)))
    return CurvePerLine(tuple(parts), np.repeat([curve.kv_s_per_token for curve in curves], lines))


def _kind(curve: DecodeCurve) -> tuple[object, ...]:
    """Return a key of the curve's kind: curves of one kind differ only in numbers. An unknown form has its own."""
    if isinstance(curve, SpedUpCurve | OccupiedCurve):
        return (type(curve), *_kind(curve.curve))
    return (type(curve), curve.tilt and curve.tilt.running) if isinstance(curve, RooflineCurve) else (id(curve),)


def _stacked(curves: Sequence[DecodeCurve], lines: int) -> DecodeCurve:
    """Stack curves into one of their kind; its equations take arrays as well as numbers."""
    first = curves[0]
    if isinstance(first, SpedUpCurve | OccupiedCurve):
        outer = [curve for curve in curves if isinstance(curve, SpedUpCurve | OccupiedCurve)]
        return replace(first, curve=_stacked([each.curve for each in outer], lines), **_columns(outer, lines))
    if not isinstance(first, RooflineCurve):
        return first
    formed = [curve for curve in curves if isinstance(curve, RooflineCurve)]
    elasticities = [curve.tilt.elasticity for curve in formed if curve.tilt is not None]
    tilt = first.tilt and first.tilt._replace(elasticity=np.repeat(np.array(elasticities, dtype=np.float64), lines))
    return replace(first, tilt=tilt, **_columns(formed, lines))


def _columns(curves: Sequence[RooflineCurve | SpedUpCurve | OccupiedCurve], lines: int) -> dict[str, Reals]:
    names = [each.name for each in fields(curves[0]) if each.name not in ("curve", "tilt")]
    return {name: np.repeat([getattr(curve, name) for curve in curves], lines) for name in names}


def _log_of_one_and(log_value: Numbers) -> Reals:
    """ln(1 + e^x), as exact as logaddexp(0, x) and several times as fast: numpy has no vector code for that."""
    return np.maximum(log_value, 0.0) + np.log1p(np.exp(-np.abs(log_value)))
