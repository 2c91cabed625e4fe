"""Duration of a training step: seconds by the number of trainer GPUs, and the rate to expect before any run.

Only the trainers' own work is counted here; the steady state adds waits for samples. Not covered: step times that vary,
batches whose tokens differ from the mean, uneven loads of experts, vision towers, and the cost of moving data.
"""

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from rlscope.model.arrays import Reals
from rlscope.model.decode.prior import LogNormal
from rlscope.model.system import Trainer, WeightUpdateCost, Workload

LIKELY_MFU: Final = LogNormal(0.35, 0.3)
"""Share of the peak that trainers reach. Published pre-training of dense models in bf16 reaches 0.25 to 0.41
(`benchmarks/plan_priors.py`). Trainers of RL reach about as much where sequences are packed (at least 0.27 to 0.44 in
asynchronous runs of NeMo RL), and less where they are not (0.14 at 16k tokens, prime-rl, 4B on H100)."""
_ROUTING_S: Final = 1.8e-6
_ROUTING_BYTES_PER_S: Final = 92e9
"""Bandwidth w in `expert_routing_s_per_token`, fitted to four models of 30 to 671 billion parameters on nodes of eight
H100 in Megatron Bridge's performance summary (`benchmarks/published_steps.py` refits them, leaving out each model in
turn)."""
_ROUTING_BYTES: Final = 8.0
"""Bytes to and from the expert per value, in the forward and in the backward pass, in bf16."""
LIKELY_ROUTING_LOG_SD: Final = 0.5
"""Log deviation of the time of routing: between the containers and kinds of node of that table, and between models left
out."""


@dataclass(frozen=True, slots=True)
class TrainerStep:
    """Seconds of one step, one entry per number of GPUs."""

    compute_s: Reals
    """Forward and backward pass, with the overhead of a step."""
    phases_s: Reals
    """Log-probabilities, checkpoints and other recorded phases."""
    blocked_s: float
    """Publishing, while no batch can be taken."""

    @property
    def work_s(self) -> Reals:
        """Seconds from taking a batch to the end of the step."""
        return self.compute_s + self.phases_s

    @property
    def total_s(self) -> Reals:
        """Seconds from taking a batch until the next can be taken."""
        return self.work_s + self.blocked_s


def trained_tokens_per_step(workload: Workload) -> float:
    """Tokens that the trainers' rate counts: generated ones, and prompts if they are counted."""
    return workload.samples_per_step * (workload.lengths.mean_tokens + workload.trained_prompt_tokens)


def trainer_step(trainer: Trainer, workload: Workload, update: WeightUpdateCost, gpus: Reals | float) -> TrainerStep:
    """Seconds of a step with `gpus` trainer GPUs: overhead + tokens / rate, where rate = u n0 (n / n0)^g.

    u: tokens per second and GPU at the n0 GPUs that were seen. A power law between n0 and n, own choice; g is 1 for
    perfect scaling, and less if data-parallel ranks wait for each other.
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
    """Return the trainer with another's passes and overhead at the GPUs seen; only its scaling differs."""
    own_s, other_s = (
        float(trainer_step(each, workload, WeightUpdateCost(), each.seen_gpus).compute_s) for each in (trainer, other)
    )
    speed = own_s / other_s
    return replace(trainer, tokens_per_gpu_s=trainer.tokens_per_gpu_s * speed, overhead_s=trainer.overhead_s / speed)


@dataclass(frozen=True, slots=True)
class TrainedModel:
    """Properties of a model that determine the cost of a trained token."""

    active_parameters: float
    layers: int
    attention_width: int
    """Heads times their dimension."""
    recomputes_activations: bool = False
    extra_forward_passes: int = 0
    """Forward passes over the same tokens inside the measured time: old log-probabilities, a reference model."""

    @property
    def passes(self) -> float:
        """Number of forward passes that cost as much as all passes over a token; a backward pass counts as two."""
        return 3.0 + float(self.recomputes_activations) + self.extra_forward_passes


def training_flops_per_token(model: TrainedModel, sequence_tokens: float) -> float:
    """Floating-point operations per token: 6 N + 12 l d s / 2, or a third more if activations are recomputed.

    Forward and backward pass of N active parameters (Kaplan et al. 2020) and of causal attention over s tokens, which
    halves its cost; 2 N + 4 l d s / 2 for every extra forward pass (own bookkeeping).
    """
    forward = 2.0 * model.active_parameters + 2.0 * model.layers * model.attention_width * sequence_tokens
    return forward * model.passes


def expert_routing_s_per_token(layers: int, experts_per_token: int, hidden_size: int) -> float:
    """GPU-seconds of a trained token besides arithmetic, in a mixture of experts: l (a + 8 k h / w).

    Each of l layers sends k copies of h values to experts and back, forward and backward, in 2 bytes (expert
    parallelism, Lepikhin et al. 2020, section 2.2), at w bytes/s. The term a covers everything that grows with neither:
    sorting tokens, launching one small multiplication for each expert, and waiting for the expert with the most tokens.
    Own form, with a and w from published rates: assumed for any other software. Forward and backward pass together.
    """
    return layers * (_ROUTING_S + _ROUTING_BYTES * experts_per_token * hidden_size / _ROUTING_BYTES_PER_S)
