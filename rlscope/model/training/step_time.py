"""How long the trainers need for a step, by the number of their GPUs.

Everything here is the trainers' own work: waiting for samples is what the steady state adds. Not covered: how the
time of a step varies, and batches whose tokens differ from the mean.
"""

from dataclasses import dataclass, replace

import numpy as np

from rlscope.model.arrays import Reals
from rlscope.model.system import Trainer, WeightUpdate, Workload


@dataclass(frozen=True, slots=True)
class TrainerStep:
    """Seconds of one step, one entry per number of GPUs asked for."""

    compute_s: Reals
    """Forward and backward pass, with the overhead of a step."""
    phases_s: Reals
    """Log-probabilities, checkpoints and whatever else the run showed."""
    blocked_s: float
    """Publishing, while no batch can be taken."""

    @property
    def work_s(self) -> Reals:
        """From taking a batch to the end of the step."""
        return self.compute_s + self.phases_s

    @property
    def total_s(self) -> Reals:
        """From taking a batch to where the next can be taken."""
        return self.work_s + self.blocked_s


def trained_tokens_per_step(workload: Workload) -> float:
    """Tokens that the trainers' rate counts: generated ones, and the prompts where they are counted."""
    return workload.samples_per_step * (workload.lengths.mean_tokens + workload.trained_prompt_tokens)


def trainer_step(trainer: Trainer, workload: Workload, update: WeightUpdate, gpus: Reals | float) -> TrainerStep:
    """Seconds of a step with so many trainer GPUs: overhead + tokens / rate, where rate = u n0 (n / n0)^g.

    u: tokens per second and GPU at the n0 GPUs that were seen. A power law between n0 and n, own choice; g is 1 where
    scaling is perfect, and less where data-parallel ranks wait for each other.
    """
    speedup = (np.asarray(gpus, dtype=np.float64) / trainer.seen_gpus) ** trainer.scaling_exponent
    rate_per_s = trainer.tokens_per_gpu_s * trainer.seen_gpus * speedup
    fixed_s = sum(phase.step_s for phase in trainer.phases if not phase.shrinks_with_gpus)
    shared_s = sum(phase.step_s for phase in trainer.phases if phase.shrinks_with_gpus)
    return TrainerStep(
        compute_s=trained_tokens_per_step(workload) / rate_per_s + trainer.overhead_s,
        phases_s=fixed_s + shared_s / speedup,
        blocked_s=update.trainer_blocked_s,
    )


def at_pace_of(trainer: Trainer, other: Trainer, workload: Workload) -> Trainer:
    """The trainer, its passes and their overhead as fast as another's with the GPUs that were seen: it then differs in
    how it scales from there.
    """
    speed = _seen_s(trainer, workload) / _seen_s(other, workload)
    return replace(trainer, tokens_per_gpu_s=trainer.tokens_per_gpu_s * speed, overhead_s=trainer.overhead_s / speed)


def _seen_s(trainer: Trainer, workload: Workload) -> float:
    tokens_per_s = trainer.tokens_per_gpu_s * trainer.seen_gpus
    return trained_tokens_per_step(workload) / tokens_per_s + trainer.overhead_s
