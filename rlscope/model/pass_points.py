"""From the passes of a stretch to the points that a decode curve is fitted to, and to those that it is compared with.

Nothing is left out here but what is of the other kind; what a fit may use is its own choice (`decode_points.py`).
"""

import numpy as np

from rlscope.model.decode_points import DecodePoints
from rlscope.model.observed import PassCosts


def decode_points(passes: PassCosts) -> DecodePoints:
    """Passes that decoded, by their running requests; some computed prompts too."""
    decodes = passes.decode_tokens > 0
    return DecodePoints.of(
        passes.running[decodes],
        passes.busy_s[decodes] / passes.passes[decodes],
        typical_s=passes.pass_p50_s[decodes],
        rows=passes.rows[decodes],
        kv_tokens=passes.kv_tokens[decodes],
        prefill_tokens=passes.prefill_tokens[decodes] / passes.passes[decodes],
    )


def prefill_points(passes: PassCosts) -> DecodePoints | None:
    """Passes that computed prompts, by all the tokens that they computed; None without one.

    Those that decoded read the KV cache too, the others none of it.
    """
    prefills = passes.prefills
    if not prefills.any():
        return None
    tokens = passes.prefill_tokens + passes.decode_tokens
    return DecodePoints.of(
        tokens[prefills] / passes.passes[prefills],
        passes.busy_s[prefills] / passes.passes[prefills],
        typical_s=passes.pass_p50_s[prefills],
        rows=passes.rows[prefills],
        kv_tokens=np.where(passes.decode_tokens > 0, passes.kv_tokens, 0.0)[prefills],
    )
