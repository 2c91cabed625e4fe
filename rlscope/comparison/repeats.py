"""Compares two settings that were each run several times, such as with different seeds: each run counts once.

The interval of a pair of runs covers what varies from step to step. Two runs of one setting also differ in what stays
constant within each: the seed, the node, the network. Only repeated runs show that, so here the spread between the runs
of a setting is the error. Not covered: runs that started from different checkpoints or that are at different points of
training.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from rlscope.comparison.attribution import setting_changes
from rlscope.comparison.differences import (
    Basis,
    LearningRow,
    Quantity,
    Row,
    corrected_rows,
    learning_rows,
    measures,
    scale_of,
)
from rlscope.comparison.facts import ComparedRun, version_steps
from rlscope.comparison.statistics import difference_of_runs

_SEEDS: Final = frozenset({"seed", "data_seed", "random_seed"})
"""Last parts of the names of config entries in which repeated runs may differ."""
_COMPARED: Final[tuple[Quantity, ...]] = (
    "tokens_per_s",
    "tokens_per_gpu_s",
    "step_s",
    "response_tokens",
    "staleness_mean",
    "dropped_ratio",
)


@dataclass(frozen=True, slots=True)
class RepeatedSetting:
    """The runs of one setting, compared with the runs of the baseline's setting."""

    baseline_runs: tuple[int, ...]
    """Positions of the runs with the baseline's setting, which is 0, among all runs."""
    runs: tuple[int, ...]
    """Positions of the runs with the other setting."""
    basis: Basis
    """Whether steady states or whole runs are compared."""
    rows: tuple[Row, ...]
    """Quantities of both settings, starting with the trained tokens per second; each value is a mean over runs."""
    learning: tuple[LearningRow, ...]
    """Reward, loss and entropy at the same step and at the same GPU-hours; each value is a mean over runs."""


def repeated_settings(runs: Sequence[ComparedRun]) -> tuple[RepeatedSetting, ...]:
    """Compare every other setting with that of the first run, if one of the two was repeated."""
    first, *others = _by_setting(runs)
    return tuple(_compared(runs, first, other) for other in others if len(first) + len(other) > 2)


def _by_setting(runs: Sequence[ComparedRun]) -> list[tuple[int, ...]]:
    """Return the positions of the runs, grouped by setting in order of appearance."""
    groups: list[list[int]] = []
    for index, run in enumerate(runs):
        alike = next((group for group in groups if _is_repeat(runs[group[0]], run)), None)
        if alike is None:
            groups.append([index])
        else:
            alike.append(index)
    return [tuple(group) for group in groups]


def _is_repeat(run: ComparedRun, other: ComparedRun) -> bool:
    """Whether two runs differ in no setting but a seed, and count tokens alike."""
    changed = {name.rpartition(".")[2] for name in setting_changes(run, other)}
    return changed <= _SEEDS and run.counts_prompts == other.counts_prompts


def _compared(runs: Sequence[ComparedRun], first: tuple[int, ...], other: tuple[int, ...]) -> RepeatedSetting:
    before, after = ([runs[index] for index in group] for group in (first, other))
    basis: Basis = "steady" if all(run.table is not None for run in (*before, *after)) else "whole"
    (rate, *rows), learning = _rows(before, after, basis), [*learning_rows(before, after, difference_of_runs)]
    rows, learning = corrected_rows(rows, learning)
    return RepeatedSetting(first, other, basis, (rate, *rows), learning)


def _rows(before: Sequence[ComparedRun], after: Sequence[ComparedRun], basis: Basis) -> Iterator[Row]:
    groups = [[measures(run, basis) for run in group] for group in (before, after)]
    meaningless: dict[Quantity, bool] = {
        "tokens_per_gpu_s": before[0].run.policy_gpus == after[0].run.policy_gpus,
        "staleness_mean": version_steps(before[0], after[0]) is not None,
    }
    for quantity in _COMPARED:
        if not meaningless.get(quantity):
            values = [[measured[quantity] for measured in group] for group in groups]
            yield Row(quantity, difference_of_runs(values[0], values[1], scale_of(quantity)))
