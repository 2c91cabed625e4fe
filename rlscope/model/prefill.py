"""How fast an engine computes prompt tokens: what passes with prefill took beyond decoding, or what hardware allows.

Not covered: prompts found in the prefix cache, which cost nothing and are not counted, and attention within very long
prompts, which grows with their square.
"""

from typing import Final

import numpy as np

from rlscope.model.decode_points import DecodePoints
from rlscope.model.hardware import Device, ModelShape
from rlscope.model.system import DecodeCurve

_PREFILL_EFFICIENCY: Final = 0.5
"""Share of the peak rate that prefill reaches: an assumption, between 0.3 and 0.7 on most engines."""
_FEWEST_TOKENS: Final = 1000.0
"""Prompt tokens below which the time they took is lost in the noise of the passes."""


def measured_prefill_tokens_per_s(points: DecodePoints, curve: DecodeCurve) -> float | None:
    """Prompt tokens per second beyond what decoding took, from passes that did both; None when it cannot be seen.

    The median over prompt tokens of (seconds of the pass - seconds that the curve gives to its decoding) per prompt
    token: one stalled pass does not move it. None too when most passes took no longer than decoding alone.
    """
    mixed = points.where((points.prefill_tokens > 0) & (points.rows > 0) & np.isfinite(points.pass_s))
    weight = mixed.prefill_tokens * mixed.rows
    if weight.sum() < _FEWEST_TOKENS:
        return None
    resident = np.nan_to_num(mixed.kv_tokens, nan=0.0)
    decode_s = curve.pass_s(np.maximum(mixed.running, 0.0)) + curve.kv_s_per_token * resident
    token_s = (mixed.pass_s - decode_s) / mixed.prefill_tokens
    order = np.argsort(token_s)
    middle = order[np.searchsorted(np.cumsum(weight[order]), weight.sum() / 2)]
    return float(1 / token_s[middle]) if token_s[middle] > 0 else None


def expected_prefill_tokens_per_s(shape: ModelShape, device: Device | None, gpus: int) -> float | None:
    """Prompt tokens per second of an engine of `gpus` GPUs by its peak: rate * 0.5 / (2 * parameters per token)."""
    if device is None or shape.parameters_per_token is None:
        return None
    return gpus * device.bf16_flop_per_s * _PREFILL_EFFICIENCY / (2 * shape.parameters_per_token)
