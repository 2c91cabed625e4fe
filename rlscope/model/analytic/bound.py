"""Upper bound on the rate of any layout: no tail, no weight updates, no staleness cap, GPUs split as finely as needed.

A step of B samples takes B mu / r + B mu / u GPU-seconds in all, so N GPUs need at least 1/N of that. The same bound
applies to a synchronous step whose generation is packed perfectly (own derivation).
"""

from dataclasses import replace
from typing import Final

import numpy as np

from rlscope.model.analytic.engine_time import Sampling, sampling_of
from rlscope.model.arrays import Flags, Reals
from rlscope.model.numerics.rootfind import bisect_condition
from rlscope.model.system import System, WeightUpdateCost
from rlscope.model.training.step_time import trainer_step

_LEAST_GPUS: Final = 1e-12
"""GPUs of a side that has none."""


def most_tokens_per_s(system: System, gpus: int, running: float | None = None) -> float:
    """Response tokens per second that `gpus` GPUs can train at most, in any layout and in a synchronous run.

    running: batch of every engine; None: its limit, or what the KV cache holds safely. With perfect scaling and no
    overhead, N r / (r + u) GPUs train and a step takes B mu / N * (1 / r + 1 / u) seconds. If trainers scale
    imperfectly, the split that balances the sides is still the best: more trainers always shorten their step.
    """
    sampling = replace(sampling_of(system), pause_s=0.0, recompute_s=0.0, recompute_pass_s=0.0)
    batch = min(float(system.engine.max_running), sampling.kv_running) if running is None else running

    def samples_last(trainer_gpus: Reals) -> Flags:
        step = trainer_step(system.trainer, system.workload, WeightUpdateCost(), np.maximum(trainer_gpus, _LEAST_GPUS))
        return _sample_s(sampling, gpus - trainer_gpus, batch) >= step.total_s

    # Trainers that hardly need GPUs are the faster side even without any; then the samplers have all GPUs.
    _, trainer_gpus = bisect_condition(samples_last, np.array([0.0]), np.array([float(gpus)]))
    step_s = float(_sample_s(sampling, gpus - trainer_gpus, batch)[0])
    return system.workload.samples_per_step * sampling.mean_tokens / step_s


def _sample_s(sampling: Sampling, gpus: Reals, running: float) -> Reals:
    return sampling.period_s(np.array([running]), np.maximum(gpus, _LEAST_GPUS) / sampling.engine.gpus)
