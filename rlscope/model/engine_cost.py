"""Cost of an engine's passes, such that the passes of a run would take as long as they did in total.

The decode curve gives the shape; what passes took beyond it is time between passes, work of another kind, or prefill.
Not covered: attention within long prompts, which grows with their square.
"""

import math
from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np

from rlscope.model.analytic.engine_time import passes_per_sample
from rlscope.model.arrays import Flags, Reals
from rlscope.model.decode.curves import RooflineCurve
from rlscope.model.observed import Observed, PassCosts
from rlscope.model.system import Engine

HOST_TIME_RATIO: Final = 0.10
"""Share of an engine's time that may be unattributed and still count as time between passes; more may be anything."""
SPECULATIVE_RATIO: Final = 1.05
"""Tokens per request and pass from which engines verify drafted tokens: without drafts, a pass makes exactly one."""
_LEAST_SPREAD: Final = 0.2
"""Coefficient of variation of a pass's prompt tokens above which a line can be fitted through its seconds."""
_OTHER_WORK: Final = ("train", "logprobs", "checkpoint", "eval", "reward", "other")
"""States in which an engine does recorded work other than generation, waiting or an update."""
_UNBOUNDED: Final = 1_000_000
"""An engine's own limit if the layout's limit is varied."""


def engine_of(observed: Observed, curve: RooflineCurve) -> Engine:
    """Build an engine whose passes take as long as measured in total; the curve determines only their shape.

    The engine makes one token per request and pass. Where a pass makes several, each of them takes its part of the
    pass.
    """
    curve_s = curve_seconds(observed.passes, curve)
    host_s = _host_s(observed, curve_s)
    prefill = prefill_cost(observed, curve, host_s, curve_s)
    return Engine(
        gpus=observed.gpus_per_engine,
        curve=_with_other_time(curve, host_s, observed),
        max_running=_UNBOUNDED,
        kv_capacity_tokens=observed.kv_capacity_tokens,
        prefill_tokens_per_s=prefill.tokens_per_s,
        prefill_pass_s=prefill.pass_s,
    )


def _host_s(observed: Observed, curve_s: Reals) -> float:
    """Seconds per pass on top of the curve: time between passes, and what decode-only passes took beyond the curve."""
    passes = observed.passes
    clean = (passes.decode_tokens > 0) & ~passes.prefills
    over_s = float((passes.busy_s - curve_s)[clean].sum() / passes.passes[clean].sum()) if clean.any() else 0.0
    between_s = float(passes.between_s.sum())
    if observed.unattributed_engine_ratio <= HOST_TIME_RATIO:
        between_s += observed.unattributed_engine_s
    return over_s + between_s / float(passes.passes.sum())


def tokens_per_pass(passes: PassCosts) -> float:
    """Mean tokens that a decode-only pass makes for a request: 1 without speculative decoding."""
    clean = (passes.decode_tokens > 0) & ~passes.prefills
    requests = float((passes.running * passes.passes)[clean].sum())
    made = float(passes.decode_tokens[clean].sum()) / requests if requests else 1.0
    return made if made >= SPECULATIVE_RATIO else 1.0


def _with_other_time(curve: RooflineCurve, host_s: float, observed: Observed) -> RooflineCurve:
    """Return the curve of a token per request, with the time between passes and the engines' other work.

    That work is in proportion to the tokens: an evaluation comes after a number of steps, however many requests run at
    once.
    """
    states, tokens = observed.engine_state_s, float(observed.passes.decode_tokens.sum())
    work_s = math.fsum(seconds for (state, _), seconds in states.items() if state in _OTHER_WORK)
    least_s = float(curve.pass_s(1.0)) - curve.overhead_s
    whole = replace(curve, overhead_s=max(curve.overhead_s + host_s, -0.9 * least_s))
    of_token = whole.sped_up(tokens_per_pass(observed.passes))
    return replace(of_token, other_s_per_request=work_s / tokens if tokens else 0.0)


class PrefillCost(NamedTuple):
    """Engine seconds of prefill: pass_s for each pass that computes prompts, plus its tokens at tokens_per_s."""

    pass_s: float
    tokens_per_s: float | None
    """None: prompts cost nothing, or all of their cost is in pass_s."""


def prefill_cost(observed: Observed, curve: RooflineCurve, host_s: float, curve_s: Reals) -> PrefillCost:
    """Split the cost of prompts so that the run's own batches would cost the same again.

    host_s: seconds between two passes. curve_s: `curve_seconds`. The tokens are those of whole prompts: the rate
    includes the savings of a cache, and excludes recomputation after preemptions, since a simulation preempts requests
    itself. If updates make the engines recompute their requests, each update takes one more pass, and the rate is that
    of all computed tokens.
    """
    passes, only_prefill = observed.passes, _only_prefill(observed.passes)
    over_s = passes.busy_s - np.where(only_prefill, 0.0, curve_s)
    host_of_prefill_s = host_s * float(passes.passes[only_prefill].sum())
    spent_s = max(float(over_s[passes.prefills].sum()) + host_of_prefill_s, 0.0)
    if spent_s <= 0.0:
        return PrefillCost(0.0, None)
    by_pass = _pass_share(passes, curve, over_s, host_s)
    by_tokens_s = (1.0 - by_pass) * spent_s
    if observed.kv_kept:
        tokens, by_tokens_s = observed.prompt_tokens * observed.began_samples, by_tokens_s * _first_ratio(observed)
    else:
        tokens = float(passes.prefill_tokens.sum())
    return PrefillCost(
        pass_s=by_pass * spent_s / _prefill_passes(observed),
        tokens_per_s=tokens / by_tokens_s if by_tokens_s > 0.0 else None,
    )


def _prefill_passes(observed: Observed) -> float:
    """Passes that compute prompts in a model of the run: for requests that join, and after updates that void the KV."""
    counts = observed.preemption_counts
    joined = observed.began_samples + (counts.preemptions if counts else 0)
    updates = 0 if observed.kv_kept else observed.publications * observed.engines
    return joined * float(passes_per_sample(observed.lengths.mean_tokens, _mean_running(observed))) + updates


def _only_prefill(passes: PassCosts) -> Flags:
    return passes.prefills & (passes.decode_tokens == 0)


def curve_seconds(passes: PassCosts, curve: RooflineCurve) -> Reals:
    """Seconds of the passes by the curve; unrecorded resident tokens count as 0."""
    running = np.maximum(passes.running, 1).astype(np.float64)
    return passes.passes * curve.decode_s(running, np.nan_to_num(passes.kv_tokens))


def _pass_share(passes: PassCosts, curve: RooflineCurve, over_s: Reals, host_s: float) -> float:
    """Share of prefill seconds, 0..1, that is paid per pass and not per token.

    It is the intercept of a line through the seconds of single passes by their prompt tokens. If those hardly vary, it
    is the intercept of the tangent to the decode curve, for passes that compute nothing else. Rows of several passes
    show neither.
    """
    single = passes.prefills & (passes.passes == passes.rows)
    if not single.any():
        return 0.0
    count = passes.passes[single].astype(np.float64)
    tokens = passes.prefill_tokens[single] / count
    alone = _only_prefill(passes)[single]
    seconds = over_s[single] / count + np.where(alone, host_s, 0.0)
    mean_tokens, mean_s = np.average(tokens, weights=count), np.average(seconds, weights=count)
    variance = np.average((tokens - mean_tokens) ** 2, weights=count)
    if mean_s <= 0.0:
        return 0.0
    if np.sqrt(variance) < _LEAST_SPREAD * mean_tokens:
        elasticity = min(max(curve.elasticity(mean_tokens), 0.0), 1.0)
        return (1.0 - elasticity) * float(np.average(alone, weights=count))
    slope_s = np.average((tokens - mean_tokens) * (seconds - mean_s), weights=count) / variance
    return float(np.clip(1.0 - slope_s * mean_tokens / mean_s, 0.0, 1.0))


def _first_ratio(observed: Observed) -> float:
    """Share of the computed prompt tokens, 0..1, that were not recomputed because of a known preemption."""
    computed, counts = float(observed.passes.prefill_tokens.sum()), observed.preemption_counts
    recomputed_tokens = counts.recomputed_tokens if counts else None
    return 1.0 - min(1.0, recomputed_tokens / computed) if recomputed_tokens and computed else 1.0


def _mean_running(observed: Observed) -> float:
    """Mean requests in a decode pass."""
    passes = observed.passes
    decodes = passes.decode_tokens > 0
    return float(np.average(passes.running[decodes], weights=passes.passes[decodes])) if decodes.any() else 1.0
