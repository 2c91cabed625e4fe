"""Number of requests that fit in an engine's KV cache.

In steady state a request is seen at a random moment of its life, and long ones are seen more often. Prompts are assumed
to be independent of the lengths and stored whole: prompts shared within a group need less. Not covered: fragmentation
inside blocks, layers with a sliding window, swapping to host memory, and the cost of a full cache (preemptions).
"""

import math
from dataclasses import dataclass
from typing import Final

from rlscope.model.hardware.devices import ModelShape
from rlscope.model.lengths import LengthLaw

SAFE_Z: Final = 2.33
"""Standard deviations that the safe batch keeps free: the cache overflows 1% of the time."""
_BLOCK_TOKENS: Final = 16
"""Tokens per cache block, the default of engines."""
_RESERVED_BYTES: Final = 4e9
"""Activations, captured graphs and communication buffers of a GPU: an assumption, engines measure their own."""


@dataclass(frozen=True, slots=True)
class KvLoad:
    """Resident tokens of one running request, in steady state."""

    mean_tokens: float
    sd_tokens: float


def steady_kv_load(prompt_tokens: float, lengths: LengthLaw) -> KvLoad:
    """Resident tokens of a running request, from the moments E[L], E[L^2], E[L^3] of the generated length.

    The age A of a request that runs at a random moment has E[A] = E[L^2] / (2 E[L]) and E[A^2] = E[L^3] / (3 E[L])
    (renewal-reward; Ross, Stochastic Processes, 1996, section 3.6), if a pass takes the same time at every age.
    """
    age_tokens = lengths.second_moment / (2 * lengths.mean_tokens)
    variance = lengths.third_moment / (3 * lengths.mean_tokens) - age_tokens**2
    return KvLoad(prompt_tokens + age_tokens, math.sqrt(max(variance, 0.0)))


def safe_batch(load: KvLoad, capacity_tokens: float, group_size: int = 1, group_correlation: float = 0.0) -> float:
    """Requests b with b mean + z sqrt(b d) sd = capacity, where d = 1 + (S - 1) rho.

    d is the design effect of groups of S with correlation rho of their resident tokens (Kish 1965), all of a group on
    one engine, which is the conservative case. A quadratic in sqrt(b).
    """
    spread = SAFE_Z * load.sd_tokens * math.sqrt(1 + (group_size - 1) * group_correlation)
    root = math.sqrt(spread**2 + 4 * load.mean_tokens * capacity_tokens) - spread
    return (root / (2 * load.mean_tokens)) ** 2


def capacity_from_device(shape: ModelShape, device_memory_bytes: float, gpus: int, memory_ratio: float) -> int | None:
    """Tokens that the KV cache of an engine of `gpus` GPUs holds if the engine did not log it; None if unknown or 0.

    (ratio * memory * gpus - weights - reserved * gpus) / bytes per token, rounded down to blocks of 16 tokens.
    """
    weight_bytes, token_bytes = shape.weight_bytes, shape.kv_bytes_per_token(gpus)
    if weight_bytes is None or not token_bytes:
        return None
    free_bytes = gpus * (memory_ratio * device_memory_bytes - _RESERVED_BYTES) - weight_bytes
    blocks = int(free_bytes // (token_bytes * _BLOCK_TOKENS))
    return blocks * _BLOCK_TOKENS if blocks > 0 else None
