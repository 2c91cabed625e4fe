"""What it costs that a KV cache runs over: requests are put back, and their tokens are computed again.

What a run lost is counted; what a layout would lose, the event simulator says, which puts back the request admitted
last, as engines do. Not covered: the requests that a full cache keeps waiting, which the gap has under the KV cache,
blocks of a request put back that a prefix cache still holds, and engines that swap to the host's memory. Where a prefix
cache spares a part of the prompts, the simulator has it spare as much of what is computed again.
"""

from dataclasses import dataclass

from rlscope.model.observed import Observed, PutBack
from rlscope.model.simulate import Simulated
from rlscope.model.system import Engine, System


@dataclass(frozen=True, slots=True)
class Preemption:
    """How often, and for how long."""

    per_sample: float
    """Times that a sample is put back, mean."""
    engine_ratio: float | None
    """Share of the engines' time that the tokens computed again take, 0..1, without what a pass costs besides its
    tokens; None where prefill was not seen, where updates have tokens computed again too, or where it is not known how
    many were."""


def preemption_seen(observed: Observed, engine: Engine) -> Preemption | None:
    """What the run lost; None where its engines do not count preemptions, or no sample began."""
    put_back = observed.put_back
    if put_back is None or not observed.began_samples:
        return None
    ratio = _again_ratio(observed, put_back, engine.prefill_tokens_per_s) if put_back.preemptions else 0.0
    return Preemption(put_back.preemptions / observed.began_samples, ratio)


def _again_ratio(observed: Observed, put_back: PutBack, rate_per_s: float | None) -> float | None:
    """Tokens take as long as when they were computed first: then the prompts took what the calibrated engine says,
    whose rate is that of whole prompts, and so not that of the tokens computed where a cache spares a part of them.
    """
    again_tokens, computed_tokens = put_back.again_tokens, float(observed.passes.prefill_tokens.sum())
    if not observed.kv_kept or not rate_per_s or again_tokens is None or again_tokens >= computed_tokens:
        return None
    prompts_s = observed.began_samples * observed.prompt_tokens / rate_per_s
    return prompts_s * again_tokens / (computed_tokens - again_tokens) / (observed.engines * observed.seconds)


def preemption_simulated(simulated: Simulated, system: System) -> Preemption:
    """What a simulated layout loses, in steady state."""
    seconds, engine = simulated.engine_seconds, system.engine
    known = system.update.kv_kept and engine.prefill_tokens_per_s is not None
    samples = simulated.generated_tokens / system.workload.lengths.mean_tokens
    ratio = seconds.recompute_s / seconds.total_s if known else None
    return Preemption(simulated.preemptions / samples, ratio if simulated.preemptions else 0.0)
