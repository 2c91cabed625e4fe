"""What it costs that a KV cache runs over: requests are put back, and their tokens are computed again.

What a run lost is counted; what a layout would lose, the event simulator says, which puts back the request admitted
last, as engines do. Not covered: the requests that a full cache keeps waiting, which the gap has under the KV cache,
blocks of a request put back that a prefix cache still holds, and engines that swap to the host's memory.
"""

from dataclasses import dataclass

from rlscope.model.observed import Observed
from rlscope.model.simulate import Simulated
from rlscope.model.system import Engine, System


@dataclass(frozen=True, slots=True)
class Preemption:
    """How often, and for how long."""

    per_sample: float
    """Times that a sample is put back, mean."""
    engine_ratio: float | None
    """Share of the engines' time that the tokens computed again take, 0..1, without what a pass costs besides its
    tokens; None where prefill was not seen, or where updates have tokens computed again too."""


def preemption_seen(observed: Observed, engine: Engine) -> Preemption | None:
    """What the run lost; None where its engines do not count preemptions, or no sample began.

    The tokens are those that were computed beyond the prompts; their time, the calibrated engine's for so many.
    """
    put_back, rate_per_s = observed.put_back, engine.prefill_tokens_per_s
    if put_back is None or not observed.began_samples:
        return None
    engine_s = observed.engines * observed.seconds
    known = observed.kv_kept and rate_per_s is not None
    ratio = put_back.again_tokens / rate_per_s / engine_s if known and rate_per_s else None
    return Preemption(put_back.preemptions / observed.began_samples, ratio if put_back.preemptions else 0.0)


def preemption_simulated(simulated: Simulated, system: System) -> Preemption:
    """What a simulated layout loses, in steady state."""
    seconds, engine = simulated.engine_seconds, system.engine
    known = system.update.kv_kept and engine.prefill_tokens_per_s is not None
    samples = simulated.generated_tokens / system.workload.lengths.mean_tokens
    ratio = seconds.recompute_s / seconds.total_s if known else None
    return Preemption(simulated.preemptions / samples, ratio if simulated.preemptions else 0.0)
