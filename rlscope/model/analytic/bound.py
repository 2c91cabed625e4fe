"""Upper bound on the rate of any layout: no tail, no weight updates, no staleness cap, GPUs split as finely as needed.

A step of B samples takes B mu / r + B mu / u GPU-seconds in all, so N GPUs need at least 1/N of that. The same bound
applies to a synchronous step whose generation is packed perfectly (own derivation).
"""

from dataclasses import replace

import numpy as np

from rlscope.model.analytic.engine_time import Sampling, sampling_of
from rlscope.model.numerics.rootfind import root
from rlscope.model.system import System, WeightUpdateCost
from rlscope.model.training.step_time import trainer_step


def most_tokens_per_s(system: System, gpus: int, running: float | None = None) -> float:
    """Response tokens per second that `gpus` GPUs can train at most, in any layout and in a synchronous run.

    running: batch of every engine; None: its limit, or what the KV cache holds safely. With perfect scaling and no
    overhead, N r / (r + u) GPUs train and a step takes B mu / N * (1 / r + 1 / u) seconds. If trainers scale
    imperfectly, the split that balances the sides is still the best: more trainers always shorten their step.
    """
    sampling = replace(sampling_of(system), pause_s=0.0, recompute_s=0.0, recompute_pass_s=0.0)
    batch = min(float(system.engine.max_running), sampling.kv_running) if running is None else running

    def imbalance_s(trainer_gpus: float) -> float:
        return _train_s(system, trainer_gpus) - _sample_s(sampling, gpus - trainer_gpus, batch)

    if imbalance_s(0.0) <= 0.0:
        # Trainers that hardly need GPUs: the samplers are the slower side even with all GPUs.
        step_s = _sample_s(sampling, float(gpus), batch)
    else:
        step_s = _train_s(system, root(imbalance_s, 0.0, float(gpus), tolerance=1e-300))
    return system.workload.samples_per_step * sampling.mean_tokens / step_s


def _train_s(system: System, gpus: float) -> float:
    return float(trainer_step(system.trainer, system.workload, WeightUpdateCost(), max(gpus, 1e-12)).total_s)


def _sample_s(sampling: Sampling, gpus: float, running: float) -> float:
    engines = np.array([max(gpus, 1e-12) / sampling.engine.gpus])
    return float(sampling.period_s(np.array([running]), engines)[0])
