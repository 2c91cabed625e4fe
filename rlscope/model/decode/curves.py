"""The decode curve: seconds of one decode pass by batch size and resident tokens.

A pass reads the weights once or computes each request, whichever takes longer; a mixture of experts also reads the
experts that its tokens hit. A constant overhead and a term for the tokens resident in the KV cache come on top. All
equations take arrays as well as numbers, so that many curves can be evaluated at once. Not covered: prefill.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Final, Literal

import numpy as np

from rlscope.model.arrays import Reals

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
    return flat_s * np.exp(growth * log_running + log_of_one_and(log_ratio) / sharpness)


def experts_hit_s(running: Numbers, experts_s: Numbers, hit_rate: Numbers) -> Reals:
    """a (1 - e^(-r b)): every expert that a token is routed to is read once.

    k of E experts drawn by each of b tokens leave 1 - (1 - k/E)^b of them hit if tokens choose independently, so r =
    -ln(1 - k/E) then, and more or less if they do not. Own derivation from the expectation of distinct draws.
    """
    return -experts_s * np.expm1(-hit_rate * np.asarray(running, dtype=np.float64))


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
    measured_running: float = math.inf
    """Requests of the largest measured batch."""
    tilt: float = 0.0
    """Departure of the curve from its form beyond it: increase of d log t / d log b."""
    experts_s: float = 0.0
    """Seconds to read all experts; 0 for a dense model."""
    hit_rate: float = 0.0
    """Rate r in 1 - e^(-r b): share of the experts not yet hit that one more token hits."""
    other_s_per_request: float = 0.0
    """Seconds of other work that the engine does after a pass, for each token that the pass made."""

    def decode_s(self, running: Reals | float, kv_tokens: Reals | float) -> Reals:
        """Seconds of a pass over `running` requests with `kv_tokens` resident, including the work that follows it."""
        return self.pass_s(running) + self.kv_s_per_token * kv_tokens

    def pass_s(self, running: Reals | float) -> Reals:
        """Seconds of a pass over `running` requests that hold no KV, including the work that follows it.

        Beyond the largest measured batch, the work is that of the form times a power of the batch over that size,
        between flat and proportional. Own choice: no form is known to hold outside the measurements.
        """
        requests = np.asarray(running, dtype=np.float64)
        work_s = self._work_s(requests)
        is_known = np.isfinite(self.measured_running)
        if is_known.any():
            beyond = np.maximum(requests / self.measured_running, 1.0)
            seen_s = self._work_s(np.where(is_known, self.measured_running, 1.0))
            tilted_s = np.clip(work_s * beyond**self.tilt, seen_s, seen_s * beyond)
            work_s = np.where(beyond > 1.0, tilted_s, work_s)
        return work_s + self.overhead_s + self.other_s_per_request * requests

    def elasticity(self, running: float) -> float:
        """Elasticity d log t / d log b of a pass over `running` requests."""
        return float(np.log(self.pass_s(running * _NUDGE) / self.pass_s(running / _NUDGE)) / np.log(_NUDGE**2))

    def sped_up(self, speed: float) -> "RooflineCurve":
        """Return the curve of passes that are faster by a factor, with the work that follows them."""
        return replace(self, **{name: getattr(self, name) / speed for name in TIMES})

    def _work_s(self, running: Numbers) -> Reals:
        # No request at all costs the flat branch, without taking the log of 0.
        shape = (self.flat_s, self.per_request_s, self.sharpness, self.growth)
        work_s = pnorm_s(np.maximum(running, 1e-9), *shape)
        return work_s + experts_hit_s(running, self.experts_s, self.hit_rate) if np.any(self.experts_s) else work_s


_NUDGE: Final = 1.05
TIMES: Final = ("flat_s", "per_request_s", "overhead_s", "kv_s_per_token", "experts_s", "other_s_per_request")
"""Parameters that are times: in proportion to the height of the curve."""


def curve_per_line(curves: Sequence[RooflineCurve], lines: int) -> RooflineCurve:
    """Combine curves, each for `lines` lines in a row: the last axis of the argument has one per line."""
    names = [each.name for each in fields(RooflineCurve)]
    return replace(curves[0], **{name: np.repeat([getattr(each, name) for each in curves], lines) for name in names})


def log_of_one_and(log_value: Numbers) -> Reals:
    """ln(1 + e^x), as exact as logaddexp(0, x) and several times as fast: numpy has no vector code for that."""
    return np.maximum(log_value, 0.0) + np.log1p(np.exp(-np.abs(log_value)))
