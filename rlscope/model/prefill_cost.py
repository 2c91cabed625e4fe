"""What computing prompts cost the engines of a run: a part for each pass that did, and a part for each of its tokens.

Prompts that join together share a pass, so the fuller the batches and the shorter the responses, the less of the first
part falls on each. Not covered: attention within long prompts, which grows with their square, and how the work of a
prompt that is found in a cache would differ under other settings.
"""

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from rlscope.model.observed import Observed, PassCosts
from rlscope.model.sampler_period import passes_per_sample
from rlscope.model.system import DecodeCurve, Reals

_LEAST_SPREAD: Final = 0.2
"""Standard deviation over mean of the prompt tokens of a pass from which a line through its seconds is told."""
_NUDGE: Final = 1.05


class PrefillCost(NamedTuple):
    """Engine seconds of prompts: pass_s for each pass that computes some, and its tokens at so many per second."""

    pass_s: float
    tokens_per_s: float | None
    """None: prompts cost nothing, or all of it is in pass_s."""


def prefill_cost(observed: Observed, curve: DecodeCurve, host_s: float) -> PrefillCost:
    """Split what prompts cost the run so that its own batches would cost the same again.

    host_s: seconds between two passes. The tokens are those of whole prompts: what a cache spares is in the rate, and
    what preemptions had computed again is not, since a simulation puts requests back itself. Where updates make the
    engines compute prompts again, that is most of the prefill and is charged to the update: the rate is then that of
    the tokens computed, and the passes are not told apart.
    """
    spent_s = _prefill_s(observed, curve, host_s)
    if spent_s <= 0.0:
        return PrefillCost(0.0, None)
    if not observed.kv_kept:
        return PrefillCost(0.0, float(observed.passes.prefill_tokens.sum()) / spent_s)
    by_pass, put_back = _pass_share(observed.passes, curve, host_s), observed.put_back
    joined = observed.began_samples + (put_back.preemptions if put_back else 0)
    token_s = (1.0 - by_pass) * spent_s * _first_ratio(observed) / observed.began_samples
    joins_per_pass = 1.0 / float(passes_per_sample(observed.lengths.mean_tokens, _mean_running(observed)))
    return PrefillCost(
        pass_s=by_pass * spent_s / joined * joins_per_pass,
        tokens_per_s=observed.prompt_tokens / token_s if token_s > 0.0 else None,
    )


def _first_ratio(observed: Observed) -> float:
    """Share of the prompt tokens computed, 0..1, that no preemption is known to have had computed again."""
    computed, put_back = float(observed.passes.prefill_tokens.sum()), observed.put_back
    again_tokens = put_back.again_tokens if put_back else None
    return 1.0 - min(1.0, again_tokens / computed) if again_tokens and computed else 1.0


def curve_seconds(passes: PassCosts, curve: DecodeCurve) -> Reals:
    """Seconds of the passes by the curve; resident tokens that were not recorded count as none."""
    pass_s = curve.pass_s(np.maximum(passes.running, 1).astype(np.float64))
    return passes.passes * (pass_s + curve.kv_s_per_token * np.nan_to_num(passes.kv_tokens))


def _prefill_s(observed: Observed, curve: DecodeCurve, host_s: float) -> float:
    """Engine seconds of prefill in the stretch."""
    passes = observed.passes
    over_s, only_prefill = _over_s(passes, curve), _only_prefill(passes)
    host_of_prefill_s = host_s * float(passes.passes[only_prefill].sum())
    return max(float(over_s[passes.prefills].sum()) + host_of_prefill_s, 0.0)


def _only_prefill(passes: PassCosts) -> npt.NDArray[np.bool_]:
    return passes.prefills & (passes.decode_tokens == 0)


def _over_s(passes: PassCosts, curve: DecodeCurve) -> Reals:
    """Seconds besides those of decoding."""
    return passes.busy_s - np.where(_only_prefill(passes), 0.0, curve_seconds(passes, curve))


def _pass_share(passes: PassCosts, curve: DecodeCurve, host_s: float) -> float:
    """Share of prefill's seconds that comes with the pass and not with its tokens, 0..1.

    The intercept of a line through the seconds of single passes by their prompt tokens; where those hardly vary, that
    of the tangent to the decode curve, for passes that compute nothing else. Rows of several passes tell neither.
    """
    single = passes.prefills & (passes.passes == passes.rows)
    if not single.any():
        return 0.0
    count = passes.passes[single].astype(np.float64)
    tokens = passes.prefill_tokens[single] / count
    alone = _only_prefill(passes)[single]
    seconds = _over_s(passes, curve)[single] / count + np.where(alone, host_s, 0.0)
    mean_tokens, mean_s = np.average(tokens, weights=count), np.average(seconds, weights=count)
    variance = np.average((tokens - mean_tokens) ** 2, weights=count)
    if mean_s <= 0.0:
        return 0.0
    if np.sqrt(variance) < _LEAST_SPREAD * mean_tokens:
        return (1.0 - _elasticity(curve, mean_tokens)) * float(np.average(alone, weights=count))
    slope_s = np.average((tokens - mean_tokens) * (seconds - mean_s), weights=count) / variance
    return float(np.clip(1.0 - slope_s * mean_tokens / mean_s, 0.0, 1.0))


def _elasticity(curve: DecodeCurve, rows: float) -> float:
    """d log t / d log b of a pass over so many rows."""
    ratio = float(curve.pass_s(rows * _NUDGE) / curve.pass_s(rows / _NUDGE))
    return min(max(float(np.log(ratio) / np.log(_NUDGE**2)), 0.0), 1.0)


def _mean_running(observed: Observed) -> float:
    """Requests in a pass that decodes."""
    passes = observed.passes
    decodes = passes.decode_tokens > 0
    return float(np.average(passes.running[decodes], weights=passes.passes[decodes])) if decodes.any() else 1.0
