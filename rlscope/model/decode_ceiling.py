"""What passes that compute prompts say of decode passes: more requests than ever ran cost no more than as many tokens.

A pass over T prompt tokens streams the same weights and multiplies as many rows as a decode pass over T requests, and
has attention among its rows and seldom a captured graph besides: its time is a ceiling on decoding (roofline, Williams,
Waterman and Patterson 2009; the comparison is our own). Prompts have far more tokens than batches have requests, so
this bounds the curve where a run that stayed at one batch size shows nothing of it. Not covered: prompts found in a
cache, which cost less than they count; a pass that is cheaper than decoding fewer tokens shows them, and is left out.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from rlscope.model.decode_points import DecodePoints
from rlscope.model.system import Reals

CEILING_LOG_SD: Final = 0.15
"""How far above a ceiling a curve may be: kernels of prompts and of decoding differ by so much at equal sizes."""
_CELLS_PER_DOUBLING: Final = 2
_LEAST_SHARE: Final = 0.6
"""Of the time of decode passes over fewer tokens: a pass that takes less did not do the same work. A KV cache read by
decoding alone accounts for the rest."""


@dataclass(frozen=True, slots=True, eq=False)
class Ceiling:
    """Passes that a decode curve must not exceed; one element a cell of like sizes."""

    tokens: Reals
    """Tokens computed in one pass, prompts and decoded ones together."""
    pass_s: Reals
    kv_tokens: Reals
    """Resident tokens that the pass reads: none where it decodes nothing."""

    def log_excess(self, pass_s: Reals) -> Reals:
        """How far a curve's passes, a row for each curve, exceed the ceiling where they do so most; 0 where nowhere."""
        return np.maximum(np.log(pass_s / self.pass_s).max(axis=-1), 0.0)


def prefill_ceiling(prefills: DecodePoints, cells: DecodePoints) -> Ceiling | None:
    """The ceiling of passes that computed prompts; None where none of them says anything.

    prefills: `running` is the tokens computed in a pass, prompts and decoded ones, and `kv_tokens` what it reads
    besides; cells: of the decode passes of the same engines. Sizes are gathered by half doublings, weighted by rows.
    """
    known = prefills.where((prefills.running > 0) & (prefills.typical_s > 0) & (prefills.rows > 0))
    if not len(known) or not len(cells):
        return None
    numbers = np.floor(_CELLS_PER_DOUBLING * np.log2(known.running)).astype(np.int64)
    _, place = np.unique(numbers, return_inverse=True)
    rows = np.bincount(place, weights=known.rows)
    columns = (known.running, known.typical_s, np.nan_to_num(known.kv_tokens))
    ceiling = Ceiling(*(np.bincount(place, weights=column * known.rows) / rows for column in columns))
    kept = ceiling.pass_s >= _LEAST_SHARE * _decoding_s(ceiling.tokens, cells)
    return Ceiling(ceiling.tokens[kept], ceiling.pass_s[kept], ceiling.kv_tokens[kept]) if kept.any() else None


def _decoding_s(tokens: Reals, cells: DecodePoints) -> Reals:
    """Seconds of the longest typical decode pass over no more requests than so many; 0 where there is none."""
    fewer = cells.running[None, :] <= tokens[:, None]
    return np.where(fewer, cells.typical_s[None, :], 0.0).max(axis=1)
