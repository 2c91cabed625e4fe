"""How fast an engine should compute prompt tokens by its hardware, where no run has shown it.

Not covered: prompts found in the prefix cache, which cost nothing, and attention within very long prompts, which grows
with their square.
"""

from typing import Final

from rlscope.model.hardware import Device, ModelShape

PREFILL_EFFICIENCY: Final = 0.5
"""Share of the peak rate that prefill reaches: an assumption, between 0.3 and 0.7 on most engines."""
_FLOP_PER_PARAMETER: Final = 2.0
"""A multiplication and an addition for each parameter and token (Kaplan et al. 2020)."""


def expected_prefill_tokens_per_s(
    shape: ModelShape, device: Device | None, gpus: int, peak_ratio: float = PREFILL_EFFICIENCY
) -> float | None:
    """Prompt tokens per second of an engine of `gpus` GPUs: rate * share / (2 * parameters per token); None if unknown.

    Roofline at its computing side (Williams, Waterman and Patterson 2009).
    """
    if device is None or shape.parameters_per_token is None:
        return None
    flop_per_s = gpus * device.bf16_flop_per_s * peak_ratio
    return flop_per_s / (_FLOP_PER_PARAMETER * shape.parameters_per_token)
