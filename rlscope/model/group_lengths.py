"""How alike the lengths of a group are: measured over whole groups, since a group waits for its longest member.

Not covered: groups with a member that never finished (they are left out, which favours short groups when many are in
flight at the end), and groups of other sizes than the commonest.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class GroupLengths:
    """What whole groups show."""

    group_size: int
    tail_ratio: float
    """Mean of the longest member over the mean of all, at least 1."""
    correlation_ratio: float
    """Share of the variance of lengths that lies between groups (one-way random effects), at most 1; noise takes it
    below 0."""
    groups: int
    """Groups it was measured on."""


def measure_groups(
    lengths: npt.ArrayLike, finished: npt.ArrayLike, group_ids: Sequence[str | int] | npt.ArrayLike
) -> GroupLengths | None:
    """Tail and correlation over the whole groups of the commonest size; None with fewer than two, or of size 1.

    lengths: tokens, one per sample; finished: whether it ended, by itself or at the cap; group_ids: its group. The
    correlation is the intraclass correlation of the analysis of variance, (MSB - MSW) / (MSB + (S - 1) MSW)
    (Shrout and Fleiss 1979, case 1).
    """
    _, group, sizes = np.unique(np.asarray(group_ids), return_inverse=True, return_counts=True)
    tokens = np.asarray(lengths, dtype=np.float64)
    whole = np.bincount(group, weights=np.asarray(finished, dtype=np.bool_)) == sizes
    if not whole.any():
        return None
    size = int(np.bincount(sizes[whole]).argmax())
    members = np.flatnonzero((whole & (sizes == size))[group])
    if size < 2 or members.size < 2 * size:
        return None
    table = tokens[members[np.argsort(group[members], kind="stable")]].reshape(-1, size)
    return GroupLengths(size, float(table.max(axis=1).mean() / table.mean()), _correlation(table), len(table))


def _correlation(table: npt.NDArray[np.float64]) -> float:
    """Rows are groups. Lengths that are all alike share everything: 1."""
    count, size = table.shape
    means = table.mean(axis=1)
    between = size * float(((means - table.mean()) ** 2).sum()) / (count - 1)
    within = float(((table - means[:, None]) ** 2).sum()) / (count * (size - 1))
    total = between + (size - 1) * within
    return (between - within) / total if total > 0.0 else 1.0
