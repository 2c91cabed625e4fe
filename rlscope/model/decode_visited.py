"""Where a run went: the batch sizes and resident tokens its passes saw, and how near a question is to them.

The word for a prediction follows from its place alone, so it can be said before anything is fitted. Not covered: how
wide the prediction's interval is; the sample of curves says that.
"""

from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from rlscope.model.decode_points import DecodePoints
from rlscope.model.system import Reals

Grade = Literal["measured", "interpolated", "extrapolated", "assumed"]
"""measured: the run made such passes; interpolated: between, or a little beyond, those it made; extrapolated: beyond,
so that hardware and form decide; assumed: nothing was measured."""

_INNER: Final = (0.05, 0.95)
"""Quantiles over cells that count as visited: the last cell at either end may be an accident."""
_BEYOND: Final = 1.5
"""A curve may be followed so far past what was visited: on measured kernels its error grows past that, from the 3 % of
the fit to 5 to 10 %."""
_SAME_BATCH: Final = 1.1
"""Batch sizes within 10 % are the same: time differs by no more than that, and mostly by far less."""
_SAME_CONTEXT: Final = 1.25
"""Contexts within 25 % are the same: the KV term is a part of the time."""
_ONE_SIZE: Final = 1.2
"""Batch sizes that differ by less are one: no slope can be seen."""
_SOLID_ROWS: Final = 4.0
"""Rows of a cell that can be called measured: their mean is known to 5 % when one row is known to 10 %."""


@dataclass(frozen=True, slots=True, eq=False)
class Visited:
    """The range of a run's passes; 5 % to 95 % of its cells of enough rows."""

    batch_low: float
    batch_high: float
    context_low_tokens: float | None
    """Resident tokens per running request; None where they were not recorded, and so below."""
    context_high_tokens: float | None
    running: Reals
    """Batch size of each cell of enough rows."""
    context_tokens: Reals
    """Resident tokens per running request of those cells; NaN where not recorded."""

    @classmethod
    def of(cls, cells: DecodePoints) -> "Visited | None":
        """The range of the cells; None without any."""
        if not len(cells):
            return None
        solid = cells.where(cells.rows >= min(_SOLID_ROWS, float(cells.rows.max())))
        context_tokens = solid.kv_tokens / solid.running
        batch_low, batch_high = np.quantile(solid.running, _INNER)
        return cls(
            float(batch_low),
            float(batch_high),
            *_inner(context_tokens),
            solid.running,
            context_tokens,
        )

    @property
    def one_batch_size(self) -> bool:
        """Whether the batches are all about of one size."""
        return self.batch_high < _ONE_SIZE * self.batch_low

    @property
    def kv_follows_batch(self) -> bool:
        """Whether resident tokens are about a multiple of the batch size everywhere."""
        if self.context_low_tokens is None or self.context_high_tokens is None:
            return False
        return self.context_high_tokens < _BEYOND * self.context_low_tokens

    def grade(self, running: float, kv_tokens: float | None) -> Grade:
        """How near a pass over `running` requests with `kv_tokens` resident is to those of the run.

        kv_tokens None asks for the tokens that were resident at that batch size in the run.
        """
        asks_context = kv_tokens is not None and self.context_low_tokens is not None
        context = kv_tokens / running if kv_tokens is not None and asks_context else None
        if self._was_there(running, context):
            return "interpolated" if kv_tokens is not None and not asks_context else "measured"
        beyond = 1.0 if self.one_batch_size else _BEYOND
        inside = self.batch_low / beyond <= running <= self.batch_high * beyond
        if context is not None and self.context_low_tokens is not None and self.context_high_tokens is not None:
            inside = inside and self.context_low_tokens / _BEYOND <= context <= self.context_high_tokens * _BEYOND
        return "interpolated" if inside else "extrapolated"

    def _was_there(self, running: float, context: float | None) -> bool:
        near = _ratio(self.running, running) <= _SAME_BATCH
        if context is not None:
            near = near & (_ratio(np.maximum(self.context_tokens, 1e-9), max(context, 1e-9)) <= _SAME_CONTEXT)
        return bool(near.any())


def _ratio(values: Reals, to: float) -> Reals:
    """How many times one is the other, 1 or more."""
    return np.exp(np.abs(np.log(values / to)))


def _inner(values: Reals) -> tuple[float, float] | tuple[None, None]:
    if np.isnan(values).any():
        return (None, None)
    low, high = np.quantile(values, _INNER)
    return (float(low), float(high))
