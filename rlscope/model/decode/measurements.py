"""Measured passes: those that a decode curve may be fitted to, and the batches and contexts that they covered.

Passes are averaged within cells of similar batch size and similar resident KV, so that a batch size seen a million
times does not outweigh the shape of the curve. The grade of a prediction follows from its distance to the cells alone,
so it is known before anything is fitted. Not covered: engines that differ, and the width of a prediction, which the
fitted sample of curves gives.
"""

import math
from dataclasses import dataclass, replace
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

from rlscope.model.arrays import Flags, Reals
from rlscope.model.numerics.changepoints import MAD_TO_SIGMA
from rlscope.model.observed import PassCosts

Grade = Literal["measured", "interpolated", "extrapolated", "assumed"]
"""measured: the run made such passes. interpolated: between the passes of the run, or slightly beyond. extrapolated:
further beyond, so that hardware and form decide. assumed: nothing was measured."""

BATCH_CELLS_PER_DOUBLING: Final = 4
"""Cells 19% apart: time hardly differs within one, and a decade of batch sizes has 13."""
_KV_CELLS_PER_DOUBLING: Final = 2
"""The KV term is only a part of the time, so its cells may be wider."""
_LEAST_CLEAN_ROWS_RATIO: Final = 0.02
"""Passes with a little prefill are included if those without are fewer than this share of all."""
_LITTLE_PREFILL_RATIO: Final = 0.1
"""Prompt tokens per running request and pass that hardly affect its time."""
_OUTLYING_SIGMAS: Final = 3.5
"""Robust deviations from the cell's median that one measurement in two thousand exceeds by chance."""
_FEWEST_TO_JUDGE: Final = 5
"""Minimum measurements of a cell to estimate the spread that makes one of them an outlier."""
_SMALLEST_SPREAD: Final = 0.05
"""Minimum spread in log time: the width of a cell alone spans this much."""
_INNER: Final = (0.05, 0.95)
"""Quantiles over cells that count as visited: the last cell at either end may be an accident."""
_BEYOND: Final = 1.5
"""Ratio beyond the visited range that a curve can be trusted over: on measured kernels its error grows beyond it, from
the 3% of the fit to 5 to 10%."""
_SAME_BATCH: Final = 1.1
"""Batch sizes within 10% count as equal: time differs by no more, and mostly by far less."""
_SAME_CONTEXT: Final = 1.25
"""Contexts within 25% count as equal: the KV term is only a part of the time."""
_ONE_SIZE: Final = 1.2
"""Batch sizes that differ by less count as one: no slope is visible."""
_SOLID_ROWS: Final = 4.0
"""Minimum rows of a cell that counts as measured: its mean is known to 5% if one row is known to 10%."""


@dataclass(frozen=True, slots=True, eq=False)
class DecodePoints:
    """Measured passes, one element per measurement; all arrays have the same length."""

    running: Reals
    """Requests in the batch."""
    pass_s: Reals
    """Mean seconds of one pass; the caller decides whether they include the time between passes."""
    typical_s: Reals
    """Median seconds of one pass over the rows, or the mean if unknown. The curve's shape is fitted to these values,
    which stalls of the host do not affect, and its height to the means, which stalls do affect."""
    rows: Reals
    """Independent measurements that this one averages."""
    kv_tokens: Reals
    """Tokens resident in the KV cache; NaN if not recorded."""
    prefill_tokens: Reals
    """Prompt tokens computed per pass."""

    @classmethod
    def of(
        cls,
        running: npt.ArrayLike,
        pass_s: npt.ArrayLike,
        *,
        typical_s: npt.ArrayLike | None = None,
        rows: npt.ArrayLike = 1.0,
        kv_tokens: npt.ArrayLike | None = None,
        prefill_tokens: npt.ArrayLike = 0.0,
    ) -> "DecodePoints":
        """Build points from arrays, or single values, which are repeated; raises ValueError if the lengths disagree."""
        typical_s = pass_s if typical_s is None else typical_s
        kv_tokens = np.nan if kv_tokens is None else kv_tokens
        given = (running, pass_s, typical_s, rows, kv_tokens, prefill_tokens)
        arrays = np.broadcast_arrays(*(np.atleast_1d(np.asarray(column, dtype=np.float64)) for column in given))
        return cls(*arrays)

    def __len__(self) -> int:
        return len(self.running)

    def where(self, kept: Flags) -> "DecodePoints":
        """Return the points that are kept."""
        return DecodePoints(*(column[kept] for column in self.columns))

    @property
    def stall_ratio(self) -> float:
        """Time of the passes over that of typical ones; 1 or close to it, and 1 without passes."""
        if not len(self):
            return 1.0
        return float((self.pass_s * self.rows).sum() / (self.typical_s * self.rows).sum())

    @property
    def columns(self) -> tuple[Reals, ...]:
        """Arrays in the order of the fields."""
        return (self.running, self.pass_s, self.typical_s, self.rows, self.kv_tokens, self.prefill_tokens)


NO_POINTS: Final = DecodePoints.of([], [])


def decode_points(passes: PassCosts) -> DecodePoints:
    """Return the passes that decoded, by their running requests; some computed prompts too."""
    decodes = passes.decode_tokens > 0
    return DecodePoints.of(
        passes.running[decodes],
        passes.busy_s[decodes] / passes.passes[decodes],
        typical_s=passes.pass_p50_s[decodes],
        rows=passes.rows[decodes],
        kv_tokens=passes.kv_tokens[decodes],
        prefill_tokens=passes.prefill_tokens[decodes] / passes.passes[decodes],
    )


def prefill_points(passes: PassCosts) -> DecodePoints:
    """Return the passes that computed prompts, by all the tokens that they computed.

    Passes that also decoded read the KV cache; the others read none of it.
    """
    prefills, tokens = passes.prefills, passes.prefill_tokens + passes.decode_tokens
    return DecodePoints.of(
        tokens[prefills] / passes.passes[prefills],
        passes.busy_s[prefills] / passes.passes[prefills],
        typical_s=passes.pass_p50_s[prefills],
        rows=passes.rows[prefills],
        kv_tokens=np.where(passes.decode_tokens > 0, passes.kv_tokens, 0.0)[prefills],
    )


def gather(points: DecodePoints) -> DecodePoints:
    """Exclude measurements that do not show decoding, and average the rest within cells.

    Outliers are measurements further than 3.5 robust deviations from their cell's median (Iglewicz and Hoaglin 1993). A
    cell's times are means over the remaining measurements, weighted by rows, because times add up. If resident tokens
    are known for most rows, they are required of all; otherwise they are not used.
    """
    shorter_s = np.minimum(points.pass_s, points.typical_s)
    timed = np.isfinite(shorter_s) & (shorter_s > 0)
    points = points.where((points.running > 0) & (points.rows > 0) & timed)
    points = points.where(_decodes_only(points))
    if not len(points):
        return points
    recorded = ~np.isnan(points.kv_tokens)
    if points.rows[recorded].sum() * 2 > points.rows.sum():
        points = points.where(recorded)
    else:
        points = replace(points, kv_tokens=np.full(len(points), np.nan))
    points = points.where(_typical(points, _cell_numbers(points)))
    return averaged(points, _cell_numbers(points))


def _decodes_only(points: DecodePoints) -> Flags:
    clean = points.prefill_tokens <= 0
    if points.rows[clean].sum() > _LEAST_CLEAN_ROWS_RATIO * points.rows.sum():
        return clean
    return points.prefill_tokens <= _LITTLE_PREFILL_RATIO * points.running


def _cell_numbers(points: DecodePoints) -> npt.NDArray[np.intp]:
    batch = np.floor(BATCH_CELLS_PER_DOUBLING * np.log2(points.running))
    kv = np.floor(_KV_CELLS_PER_DOUBLING * np.log2(np.maximum(points.kv_tokens, 1.0)))
    places = np.stack([batch, np.nan_to_num(kv, nan=-1.0)])
    return np.unique(places, axis=1, return_inverse=True)[1].reshape(-1)


def _typical(points: DecodePoints, cell: npt.NDArray[np.intp]) -> Flags:
    """Whether each point is near its cell's median; true for all points of a cell that is too small to judge."""
    log_s = np.log(points.typical_s)
    typical = np.ones(len(points), dtype=np.bool_)
    for number in np.unique(cell):
        members = np.flatnonzero(cell == number)
        if len(members) >= _FEWEST_TO_JUDGE:
            distance = np.abs(log_s[members] - np.median(log_s[members]))
            spread = max(MAD_TO_SIGMA * float(np.median(distance)), _SMALLEST_SPREAD)
            typical[members] = distance <= _OUTLYING_SIGMAS * spread
    return typical


def averaged(points: DecodePoints, cell: npt.NDArray[np.intp]) -> DecodePoints:
    """Average the points of each cell, weighted by rows; cell: number of each point's."""
    rows = np.bincount(cell, weights=points.rows)
    means = (np.bincount(cell, weights=column * points.rows) / rows for column in points.columns)
    return replace(DecodePoints(*means), rows=rows)


@dataclass(frozen=True, slots=True, eq=False)
class Visited:
    """Range of a run's passes: 5% to 95% of its cells with enough rows."""

    batch_low: float
    batch_high: float
    context_low_tokens: float
    """Resident tokens per running request; NaN if not recorded; likewise below."""
    context_high_tokens: float
    running: Reals
    """Batch size of each cell with enough rows."""
    context_tokens: Reals
    """Resident tokens per running request of those cells."""

    @classmethod
    def of(cls, cells: DecodePoints) -> "Visited | None":
        """Return the range of the cells; None without any."""
        if not len(cells):
            return None
        solid = cells.where(cells.rows >= min(_SOLID_ROWS, float(cells.rows.max())))
        context_tokens = solid.kv_tokens / solid.running
        batch_low, batch_high = np.quantile(solid.running, _INNER).tolist()
        context_low, context_high = np.quantile(context_tokens, _INNER).tolist()
        return cls(batch_low, batch_high, context_low, context_high, solid.running, context_tokens)

    @property
    def one_batch_size(self) -> bool:
        """Whether all batches have about the same size."""
        return self.batch_high < _ONE_SIZE * self.batch_low

    @property
    def knows_context(self) -> bool:
        """Whether resident tokens were recorded."""
        return not math.isnan(self.context_low_tokens)

    @property
    def kv_follows_batch(self) -> bool:
        """Whether resident tokens are about proportional to the batch size everywhere."""
        return self.context_high_tokens < _BEYOND * self.context_low_tokens

    def grade(self, running: float, kv_tokens: float | None) -> Grade:
        """Grade a pass over `running` requests with `kv_tokens` resident by its distance from the run's passes.

        kv_tokens None stands for the tokens that were resident at that batch size in the run.
        """
        context = kv_tokens / running if kv_tokens is not None and self.knows_context else None
        if self._was_there(running, context):
            return "interpolated" if kv_tokens is not None and context is None else "measured"
        beyond = 1.0 if self.one_batch_size else _BEYOND
        inside = self.batch_low / beyond <= running <= self.batch_high * beyond
        if context is not None:
            inside = inside and self.context_low_tokens / _BEYOND <= context <= self.context_high_tokens * _BEYOND
        return "interpolated" if inside else "extrapolated"

    def _was_there(self, running: float, context: float | None) -> bool:
        near = _ratio(self.running, running) <= _SAME_BATCH
        if context is not None:
            near = near & (_ratio(np.maximum(self.context_tokens, 1e-9), max(context, 1e-9)) <= _SAME_CONTEXT)
        return bool(near.any())


def _ratio(values: Reals, to: float) -> Reals:
    """Ratio of the larger to the smaller, 1 or more."""
    return np.exp(np.abs(np.log(values / to)))
