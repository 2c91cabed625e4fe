"""What passes that compute prompts say of decode passes: as many rows through the same weights take about as long.

A pass over T prompt tokens streams the same weights and multiplies as many rows as a decode pass over T requests
(roofline, Williams, Waterman and Patterson 2009; the comparison is our own). It has attention among its rows and
seldom a captured graph, and it samples no token: its time is that of decoding up to a factor, which changes slowly with
the number of rows. Where a run stayed at one batch size this is what shows the slope of its curve. Not covered: prompts
found in a cache, which cost less than they count; a pass that is much cheaper than decoding fewer tokens shows them,
and is left out.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from rlscope.model.decode_points import DecodePoints
from rlscope.model.system import Reals

FACTOR_LOG_SD: Final = 0.3
"""Of decoding over computing prompts at as many rows: 1.4 for the example pipeline on a processor, whose decode passes
sample; 0.7 to 1.3 where only the rate of multiplication differs."""
DRIFT_LOG_SD: Final = 0.1
"""How far that factor moves over one doubling of the rows, as a random walk from the batch that the run measured."""
CELL_LOG_SD: Final = 0.05
"""Of a cell besides."""
_DEGREES: Final = 4.0
"""Of Student's law of the whole: prompts of another kind than these are to be outvoted, not to bend the curve."""
_CELLS_PER_DOUBLING: Final = 2
_LEAST_SHARE: Final = 0.6
"""Of the time of decode passes over fewer tokens: a pass that takes less did not do the same work. A KV cache read by
decoding alone, and the sampling of tokens, account for the rest."""


@dataclass(frozen=True, slots=True, eq=False)
class PromptPasses:
    """Passes over prompts that a decode curve is compared with; one element a cell of like sizes."""

    tokens: Reals
    """Tokens computed in one pass, prompts and decoded ones together."""
    pass_s: Reals
    kv_tokens: Reals
    """Resident tokens that the pass reads: none where it decodes nothing."""
    covariance: Reals
    """Of the logarithm of decoding over these passes, cell by cell."""

    def log_density(self, pass_s: Reals) -> Reals:
        """Log density, up to a constant, of these passes when a curve says `pass_s` of as many rows, a row a curve.

        Student's law of several dimensions (Lange, Little and Taylor 1989 for its use against outliers).
        """
        log_ratio = np.log(pass_s / self.pass_s)
        squared = (log_ratio * np.linalg.solve(self.covariance, log_ratio.T).T).sum(axis=-1)
        return -(_DEGREES + len(self.tokens)) / 2 * np.log1p(squared / _DEGREES)


def prompt_passes(prefills: DecodePoints, cells: DecodePoints) -> PromptPasses | None:
    """What to compare a curve with; None where no pass over prompts says anything.

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
    tokens, pass_s, kv_tokens = (np.bincount(place, weights=column * known.rows) / rows for column in columns)
    kept = pass_s >= _LEAST_SHARE * _decoding_s(tokens, cells)
    if not kept.any():
        return None
    doublings = np.log2(tokens[kept] / float(np.median(cells.running)))
    return PromptPasses(tokens[kept], pass_s[kept], kv_tokens[kept], _covariance(doublings))


def _covariance(doublings: Reals) -> Reals:
    """A common factor, a random walk from 0 to either side, and what is each cell's own."""
    nearer = np.minimum(np.abs(doublings)[:, None], np.abs(doublings)[None, :])
    shared = np.where(doublings[:, None] * doublings[None, :] > 0, nearer, 0.0)
    return FACTOR_LOG_SD**2 + DRIFT_LOG_SD**2 * shared + CELL_LOG_SD**2 * np.eye(len(doublings))


def _decoding_s(tokens: Reals, cells: DecodePoints) -> Reals:
    """Seconds of the longest typical decode pass over no more requests than so many; 0 where there is none."""
    fewer = cells.running[None, :] <= tokens[:, None]
    return np.where(fewer, cells.typical_s[None, :], 0.0).max(axis=1)
