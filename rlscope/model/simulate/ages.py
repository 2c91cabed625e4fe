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
Switches = Sequence[Sequence[tuple[int, int]]]
"""Engine by engine: (passes done, version) at each change of weights, the first at pass 0."""


@dataclass(frozen=True, slots=True, eq=False)
class _Runs:
    """Consecutive tokens of one sample that one version sampled."""

    sample: Integers
    version: Integers
    tokens: Integers


def staleness_of(samples: Samples, trained_groups: Integers, switches: Switches) -> SimulatedStaleness:
    """Staleness over the tokens, samples and groups of the groups given, all of them trained."""
    size = samples.group_size
    consumer = np.array(samples.group_consumer_version)
    is_trained = np.zeros(consumer.size, dtype=np.bool_)
    is_trained[trained_groups] = True
    runs = _runs(samples, np.repeat(is_trained, size), switches)
    newest = np.full(consumer.size * size, -1)
    np.maximum.at(newest, runs.sample, runs.version)
    first = np.array(samples.first_version).reshape(-1, size)[trained_groups]
    group_first = np.array(samples.group_first_version)[trained_groups]
    group_ready = np.array(samples.group_ready_version)[trained_groups]
    group_consumer = consumer[trained_groups]
    of_token = np.repeat(consumer, size)[runs.sample] - runs.version
    tokens = int(runs.tokens.sum())
    in_flight = int(((newest[runs.sample] - runs.version) * runs.tokens).sum())
    return SimulatedStaleness(
        tokens=_ages(of_token, runs.tokens),
        samples=_ages((group_consumer[:, None] - first).ravel()),
        groups=_ages(group_consumer - group_first),
        in_flight_mean=in_flight / tokens,
        in_queue_mean=(int((of_token * runs.tokens).sum()) - in_flight) / tokens,
        group_before_queue_mean=float((group_ready - group_first).mean()),
        group_in_queue_mean=float((group_consumer - group_ready).mean()),
    )


def _runs(samples: Samples, wanted: npt.NDArray[np.bool_], switches: Switches) -> _Runs:
    """The tokens of the wanted samples, all finished, by version."""
    sample, engine, start_pass, tokens = _stretches(samples, wanted)
    # One line of numbers for all engines: each has a stretch of it as long as the longest has passes.
    width = max(int((start_pass + tokens).max()), max(at for each in switches for at, _ in each)) + 1
    switch_at = np.array([index * width + at for index, each in enumerate(switches) for at, _ in each])
    switch_version = np.array([version for each in switches for _, version in each])
    start, end = engine * width + start_pass, engine * width + start_pass + tokens
    first = np.searchsorted(switch_at, start, side="right") - 1
    count = np.searchsorted(switch_at, end, side="left") - first
    owner = np.repeat(np.arange(sample.size), count)
    at = first[owner] + np.arange(owner.size) - np.repeat(np.cumsum(count) - count, count)
    ends = np.minimum(end[owner], np.append(switch_at[1:], np.iinfo(np.int64).max)[at])
    length = ends - np.maximum(start[owner], switch_at[at])
    held = length > 0
    return _Runs(sample[owner][held], switch_version[at][held], length[held])


def _stretches(samples: Samples, wanted: npt.NDArray[np.bool_]) -> tuple[Integers, Integers, Integers, Integers]:
    """Sample, engine, passes before the first token, and tokens, of each stretch of consecutive passes."""
    last = np.flatnonzero(wanted)
    engine, start_pass, left = (np.array(each) for each in (samples.engine, samples.start_pass, samples.left_tokens))
    pieces = np.array(samples.pieces, dtype=np.int64).reshape(-1, 3)
    pieces = pieces[wanted[pieces[:, 0]]]
    sample = np.concatenate((last, pieces[:, 0]))
    return (
        sample,
        engine[sample],
        np.concatenate((start_pass[last], pieces[:, 1])),
        np.concatenate((left[last], pieces[:, 2])),
    )


def _ages(ages: Integers, weights: Integers | None = None) -> Ages:
    """Ages that occur; the sums of integer weights are exact as long as they are below 2^53."""
    counts = np.bincount(ages, weights=weights)
    return Ages(tuple((age, int(count)) for age, count in enumerate(counts.tolist()) if count))
