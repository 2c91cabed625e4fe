"""What cells of measured passes say of a curve: how likely they are under it, and what a typical one is.

Not covered: errors that cells share beyond one doubling of the batch size, such as an engine that is slow throughout.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from rlscope.model.decode_points import BATCH_CELLS_PER_DOUBLING, DecodePoints
from rlscope.model.system import Reals

_HUBER: Final = 1.345
"""Residuals, in deviations, beyond which their weight falls: 95 % as efficient as least squares (Huber 1964)."""
_FORM_ERROR: Final = 0.03
"""Log deviation of the form itself over a doubling of the batch size: kernels change with it, and fits to the table of
measured ones are 1 to 3 % off. Smaller values let bumps at small batches bend the curve far beyond them."""


@dataclass(frozen=True, slots=True)
class Reference:
    """A typical pass of the run, which expectations without a device are relative to."""

    running: float
    pass_s: float
    kv_tokens: float | None
    """None where it was not recorded, or mostly as none."""

    @classmethod
    def of(cls, cells: DecodePoints) -> "Reference":
        """The medians of the cells."""
        kv_tokens = float(np.median(cells.kv_tokens))
        known = kv_tokens if kv_tokens > 0 else None
        return cls(float(np.median(cells.running)), float(np.median(cells.typical_s)), known)


@dataclass(frozen=True, slots=True, eq=False)
class Evidence:
    """The cells as the likelihood needs them."""

    running: Reals
    kv_tokens: Reals
    log_pass_s: Reals
    rows: Reals
    known_variance: Reals
    """Of log time: error of the batch size."""
    members: Reals
    """Cells by batch size, one row a cell and one column a size: 1 where it is the cell's."""
    form_variance: Reals
    """Of log time: error of the form at each of those sizes, which all cells of a size share."""

    @classmethod
    def of(cls, cells: DecodePoints) -> "Evidence":
        """Variances of cells.

        An error of the batch size counts with the elasticity at its largest, 1 (effective variance, Barker and Diana
        1974). The form's own error is that of the batch size: cells of one size share it, and differ by their resident
        tokens alone. The sizes of one doubling together say no more than one: each has the error times their number.
        """
        known_variance = (cells.running_sd / cells.running) ** 2
        numbers = np.floor(BATCH_CELLS_PER_DOUBLING * np.log2(cells.running)).astype(np.int64)
        sizes, size = np.unique(numbers, return_inverse=True)
        doubling = sizes // BATCH_CELLS_PER_DOUBLING
        sharing = (doubling[:, None] == doubling[None, :]).sum(axis=1)
        members = np.eye(len(sizes))[size]
        variance = _FORM_ERROR**2 * sharing
        return cls(
            cells.running, cells.kv_tokens, np.log(cells.typical_s), cells.rows, known_variance, members, variance
        )

    def log_likelihood(self, pass_s: Reals, residual: Reals, row_noise: Reals) -> Reals:
        """Log density, up to a constant, of the cells when a curve says `pass_s`: Huber's law in log time.

        pass_s: seconds, a row for each curve; residual: log deviation of cells besides what is known; row_noise: log
        deviation of one measurement, of which a cell averages as many as it has rows. One of each a row.

        The form's error d at a size with cells of weights w is normal and marginalised: its most likely value is
        sum(w r) / (sum(w) + 1 / var d), and it costs d^2 / (2 var d) + log(1 + var d sum(w)) / 2 (random effects, Laird
        and Ware 1982).
        """
        variance = residual[:, None] ** 2 + row_noise[:, None] ** 2 / self.rows + self.known_variance
        distance = self.log_pass_s - np.log(pass_s)
        weight = (1.0 / variance) @ self.members
        shared = (distance / variance) @ self.members / (weight + 1.0 / self.form_variance)
        own = np.abs(distance - shared @ self.members.T) / np.sqrt(variance)
        huber = np.where(own <= _HUBER, own**2 / 2, _HUBER * (own - _HUBER / 2))
        cost = shared**2 / self.form_variance + np.log1p(self.form_variance * weight)
        return -(huber + np.log(variance) / 2).sum(axis=-1) - cost.sum(axis=-1) / 2
