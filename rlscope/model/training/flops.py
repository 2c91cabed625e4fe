"""What the arithmetic of training says of its rate: a prior before any run.

Not covered: mixtures of experts beyond their active parameters, vision towers, and the cost of moving data.
"""

from dataclasses import dataclass
from typing import Final

from rlscope.model.lengths import LengthLaw

LIKELY_MFU_RATIO: Final = 0.25
LIKELY_MFU_SD: Final = 0.1
"""Trainers of RL runs use 10 to 35 % of the peak: prime-rl reports 14 % at 16k tokens and 35 % at 65k, 4B on H100."""


@dataclass(frozen=True, slots=True)
class TrainedModel:
    """What one trained token costs depends on."""

    active_parameters: float
    layers: int
    attention_width: int
    """Heads times their dimension."""
    recomputes_activations: bool = False
    extra_forward_passes: int = 0
    """Forward passes over the same tokens inside the measured time: old log-probabilities, a reference model."""


def token_weighted_tokens(lengths: LengthLaw, prompt_tokens: float) -> float:
    """Length of the sequence that a random generated token is in: P + E[L^2] / E[L], tokens."""
    return prompt_tokens + lengths.second_moment / lengths.mean_tokens


def training_flops_per_token(model: TrainedModel, sequence_tokens: float) -> float:
    """Floating-point operations per token: 6 N + 12 l d s / 2, or a third more when activations are recomputed.

    Forward and backward pass of N active parameters (Kaplan et al. 2020) and of causal attention over s tokens, which
    halves its cost; 2 N + 4 l d s / 2 for every extra forward pass (own bookkeeping).
    """
    forward = 2.0 * model.active_parameters + 2.0 * model.layers * model.attention_width * sequence_tokens
    passes = 3.0 + float(model.recomputes_activations) + model.extra_forward_passes
    return forward * passes


def prior_tokens_per_gpu_s(
    model: TrainedModel, sequence_tokens: float, peak_flops_per_s: float, mfu_ratio: float = LIKELY_MFU_RATIO
) -> float:
    """Tokens per second and GPU at a share of the peak of one GPU: assumed, not measured."""
    return mfu_ratio * peak_flops_per_s / training_flops_per_token(model, sequence_tokens)
