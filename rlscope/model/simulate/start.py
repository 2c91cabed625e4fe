"""What a simulated run starts with: its engines' terms, and how many samples start at once."""

import math

import numpy as np

from rlscope.model.simulate.engine import EngineTerms
from rlscope.model.simulate.settings import Settings
from rlscope.model.system import Layout, System


def engine_terms(system: System, layout: Layout, settings: Settings) -> tuple[EngineTerms, ...]:
    """Every engine of the layout."""
    engine, update = system.engine, system.update
    running = min(layout.running_per_engine, engine.max_running)
    empty_pass_s = np.append(0.0, engine.curve.pass_s(np.arange(1.0, running + 1)))
    prefill_s = 1.0 / engine.prefill_tokens_per_s if engine.prefill_tokens_per_s else 0.0
    return tuple(
        EngineTerms(
            empty_pass_s=tuple((slowness * empty_pass_s).tolist()),
            kv_s_per_token=slowness * engine.curve.kv_s_per_token,
            max_running=running,
            kv_capacity_tokens=math.inf if engine.kv_capacity_tokens is None else engine.kv_capacity_tokens,
            prompt_tokens=system.workload.prompt_tokens,
            prefill_s_per_token=slowness * prefill_s,
            prefill_pass_s=slowness * engine.prefill_pass_s,
            pause_s=update.engine_pause_s,
            kv_kept=update.kv_kept,
            drains=settings.publication == "drained",
        )
        for slowness in settings.engine_slowness or (1.0,) * (layout.sampler_gpus // engine.gpus)
    )


def samples_at_start(system: System, layout: Layout) -> int:
    """Samples that start at once: what the places and the limits on what is in flight let in."""
    workload, admission = system.workload, system.admission
    limits = [layout.sampler_gpus // system.engine.gpus * layout.running_per_engine]
    if admission.max_in_flight_samples is not None:
        limits.append(admission.max_in_flight_samples)
    if admission.max_staleness is not None and admission.queue_policy != "drop_by_age":
        limits.append((admission.max_staleness + 1) * workload.samples_per_step)
    return min(limits)
