"""The version of every trained token, from the passes at which each engine changed its weights. No loop over tokens.

A sample's tokens fall on consecutive passes of one engine (of several stretches of passes, if it was preempted), so
the changes of weights inside its passes cut it into runs of one version.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rlscope.model.simulate.outcome import Ages, SimulatedStaleness
from rlscope.model.simulate.samples import Samples

Integers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
Switches = Sequence[Sequence[tuple[int, int]]]
"""Engine by engine: (passes done, version) at each change of weights, the first at pass 0."""


@dataclass(frozen=True, slots=True, eq=False)
class Columns:
    """Columns of `Samples` as arrays: by sample, and by group where the name says so."""

    group_size: int
    length_tokens: Integers
    left_tokens: Integers
    engine: Integers
    start_pass: Integers
    first_version: Integers
    is_finished: Flags
    group_outcome: Integers
    group_step: Integers
    group_first_version: Integers
    group_ready_version: Integers
    group_consumer_version: Integers
    pieces: Integers

    @classmethod
    def of(cls, samples: Samples) -> "Columns":
        """Copy them, each once."""
        return cls(
            group_size=samples.group_size,
            length_tokens=np.array(samples.length_tokens),
            left_tokens=np.array(samples.left_tokens),
            engine=np.array(samples.engine),
            start_pass=np.array(samples.start_pass),
            first_version=np.array(samples.first_version),
            is_finished=np.array(samples.finished_s) >= 0.0,
            group_outcome=np.array(samples.group_outcome),
            group_step=np.array(samples.group_step),
            group_first_version=np.array(samples.group_first_version),
            group_ready_version=np.array(samples.group_ready_version),
            group_consumer_version=np.array(samples.group_consumer_version),
            pieces=np.array(samples.pieces, dtype=np.int64).reshape(-1, 3),
        )

    def members(self, groups: Integers) -> Integers:
        """The samples of groups."""
        return (groups[:, None] * self.group_size + np.arange(self.group_size)).ravel()


@dataclass(frozen=True, slots=True, eq=False)
class _Runs:
    """Consecutive tokens of one sample that one version sampled."""

    sample: Integers
    version: Integers
    tokens: Integers


def staleness_of(columns: Columns, trained_groups: Integers, switches: Switches) -> SimulatedStaleness:
    """Staleness over the tokens, samples and groups of the groups given, all of them trained."""
    runs = _runs(columns, columns.members(trained_groups), switches)
    newest = np.zeros(columns.engine.size, dtype=np.int64)
    np.maximum.at(newest, runs.sample, runs.version)
    consumer = columns.group_consumer_version[trained_groups]
    first = columns.first_version.reshape(-1, columns.group_size)[trained_groups]
    of_token = columns.group_consumer_version[runs.sample // columns.group_size] - runs.version
    tokens = int(runs.tokens.sum())
    in_flight = int(((newest[runs.sample] - runs.version) * runs.tokens).sum())
    ready, group_first = (each[trained_groups] for each in (columns.group_ready_version, columns.group_first_version))
    return SimulatedStaleness(
        tokens=_ages(of_token, runs.tokens),
        samples=_ages((consumer[:, None] - first).ravel()),
        groups=_ages(consumer - group_first),
        in_flight_mean=in_flight / tokens,
        in_queue_mean=(int((of_token * runs.tokens).sum()) - in_flight) / tokens,
        group_before_queue_mean=float((ready - group_first).mean()),
        group_in_queue_mean=float((consumer - ready).mean()),
    )


def _runs(columns: Columns, wanted: Integers, switches: Switches) -> _Runs:
    """The tokens of the wanted samples, all finished, by version."""
    sample, start_pass, tokens = _stretches(columns, wanted)
    engine = columns.engine[sample]
    # One line of numbers for all engines: each has a stretch of it as long as the longest has passes.
    width = max(int((start_pass + tokens).max()), max(at for each in switches for at, _ in each)) + 1
    switch_at = np.array([index * width + at for index, each in enumerate(switches) for at, _ in each])
    switch_version = np.array([version for each in switches for _, version in each])
    start = engine * width + start_pass
    end = start + tokens
    first = np.searchsorted(switch_at, start, side="right") - 1
    count = np.searchsorted(switch_at, end, side="left") - first
    owner = np.repeat(np.arange(sample.size), count)
    at = first[owner] + np.arange(owner.size) - np.repeat(np.cumsum(count) - count, count)
    ends = np.minimum(end[owner], np.append(switch_at[1:], np.iinfo(np.int64).max)[at])
    length = ends - np.maximum(start[owner], switch_at[at])
    held = length > 0
    return _Runs(sample[owner][held], switch_version[at][held], length[held])


def _stretches(columns: Columns, wanted: Integers) -> tuple[Integers, Integers, Integers]:
    """Sample, passes before the first token, and tokens, of each stretch of consecutive passes."""
    pieces = columns.pieces
    if pieces.size:
        is_wanted = np.zeros(columns.engine.size, dtype=np.bool_)
        is_wanted[wanted] = True
        pieces = pieces[is_wanted[pieces[:, 0]]]
    return (
        np.concatenate((wanted, pieces[:, 0])),
        np.concatenate((columns.start_pass[wanted], pieces[:, 1])),
        np.concatenate((columns.left_tokens[wanted], pieces[:, 2])),
    )


def _ages(ages: Integers, weights: Integers | None = None) -> Ages:
    """Ages that occur; the sums of whole weights are exact as long as they are below 2^53."""
    counts = np.bincount(ages, weights=weights)
    return Ages(tuple((age, int(count)) for age, count in enumerate(counts.tolist()) if count))
