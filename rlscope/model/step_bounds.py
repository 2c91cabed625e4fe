"""Bounds on the throughput after a change, from the phases of a trainer's steps alone.

A trainer's log times the phases of a step and says nothing of the engines, so no model can be fitted to it. With S
the time from one step to the next, G generation, U the weight update and W everything else that the trainer does:

- Serial steps: S = G + W + U. A phase that gets shorter, or runs beside the others, shortens the step by as much as it
  saves, never by more (Amdahl 1967).
- Overlapping steps, as under a staleness cap of 1 or more: trainers and samplers are two stations that every step
  passes, and a step takes as long as the busier of them (utilization law; Denning & Buzen 1978, "The Operational
  Analysis of Queueing Network Models"). Trainers are busy for W + U, so S' = W + U at best. Samplers are busy for G at
  most, and for G + U if updates stop generation, so S' = max(G, W) + U at worst. For G at most, because a serial step
  waits for its longest response while engines run ever fewer requests; steps that overlap keep the engines full. If all
  requests start at once, engines are as full on average as the mean response is long, relative to the longest (own
  derivation), so samplers are busy for G times that ratio at least, unless more requests run at once.
- If steps may overlap already, G in the log is only the part of generation that trainers wait for: samplers are busy
  for at least G and at most S of a step. Each bound below holds for both ends.

All phases are means over the steps. If they vary from step to step, a cap of exactly 1 gains less than a larger one.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal

_LEAST_GAIN_RATIO: Final = 0.01
"""Smaller gains are not listed: no timer of a framework is that accurate."""
_MOVABLE: Final = ("logprobs", "reward", "other", "checkpoint", "eval")
"""States of the ledger that hardware of its own, or the background, can take over from the trainer."""

Change = Literal["staleness_cap", "double_generation", "half_update", "hidden_update", "hidden_phase"]
Requirement = Literal["staleness_cap", "sampler_gpus"]


@dataclass(frozen=True, slots=True)
class StepPhases:
    """Phases of the mean step of the steady state, as the trainer's log times them."""

    steps: int
    """Number of steps that the means are over."""
    step_s: float
    """Time from one step to the next, in seconds."""
    generation_s: float
    """Generation on shared GPUs, or the trainers' waits for samples, in seconds per step."""
    update_s: float
    """Weight updates, in seconds per step."""
    other_s: Mapping[str, float]
    """Everything else, in seconds per step by state of the ledger."""
    shares_gpus: bool
    """Whether the same GPUs generate and train."""
    is_synchronous: bool | None
    """Whether the phases follow each other; None if the log does not show it."""
    mean_length_ratio: float | None = None
    """Mean response length of a step over its longest, 0..1; None if the log does not have both."""

    @property
    def work_s(self) -> float:
        """Return the seconds per step that are neither generation nor a weight update."""
        return self.step_s - self.generation_s - self.update_s


@dataclass(frozen=True, slots=True)
class StepBound:
    """Bound on the throughput after one change."""

    change: Change
    """staleness_cap: a cap of 1 or more instead of synchronous steps, or a higher one. double_generation: generation,
    tools included, twice as fast. half_update: weight updates half as long. hidden_update: updates that stop neither
    side. hidden_phase: a phase that runs beside the others."""
    throughput_ratio_low: float
    """Least throughput after the change over today's."""
    throughput_ratio_high: float
    """Most throughput after the change over today's; equal to the least if the log leaves nothing open."""
    phase: str | None = None
    """State of the ledger that a hidden phase is in; None for another change."""
    requires: Requirement | None = None
    """A staleness cap of 1 or more, or as many GPUs again for sampling; None if the change needs nothing else."""


@dataclass(frozen=True, slots=True)
class StepBounds:
    """Phases of a step, and bounds on the throughput after a change."""

    phases: StepPhases
    """Phases of the mean step."""
    bounds: tuple[StepBound, ...]
    """Changes that can gain 1% or more, those that need nothing else first, then by the middle of their range."""

    @property
    def largest(self) -> StepBound | None:
        """Return the first change that needs nothing else; None if there is none."""
        return next((each for each in self.bounds if each.requires is None), None)


def step_bounds(phases: StepPhases) -> StepBounds:
    """Return the bounds for every change that the phases say something about.

    Args:
        phases: Phases of the mean step; `step_s` is above 0.
    """
    found = _serial(phases) if phases.is_synchronous else _overlapping(phases)
    named = [each for each in found if each.throughput_ratio_high - 1.0 >= _LEAST_GAIN_RATIO]
    named.sort(key=lambda each: (each.requires is not None, -each.throughput_ratio_low * each.throughput_ratio_high))
    return StepBounds(phases, tuple(named))


def _serial(phases: StepPhases) -> Iterator[StepBound]:
    """Yield the bounds of synchronous steps."""
    step_s, generation_s, update_s, work_s = phases.step_s, phases.generation_s, phases.update_s, phases.work_s
    requires: Requirement | None = "sampler_gpus" if phases.shares_gpus else None
    full_s = generation_s * (phases.mean_length_ratio or 0.0)
    overlapped_s = max(generation_s, work_s) + update_s, max(full_s, work_s + update_s)
    yield from _bound(phases, "staleness_cap", *overlapped_s, requires)
    if update_s and not phases.shares_gpus:
        # While steps do not overlap, nothing else runs that could hide an update.
        yield from _bound(phases, "hidden_update", max(generation_s, work_s), max(full_s, work_s), "staleness_cap")
    shorter_s = step_s - generation_s / 2.0, step_s - update_s / 2.0
    yield from _bound(phases, "double_generation", shorter_s[0], shorter_s[0])
    yield from _bound(phases, "half_update", shorter_s[1], shorter_s[1])
    for name, phase_s in _movable(phases):
        yield from _bound(phases, "hidden_phase", step_s - phase_s, step_s - phase_s, phase=name)


def _overlapping(phases: StepPhases) -> Iterator[StepBound]:
    """Yield the bounds of steps that overlap, or may.

    At worst the samplers are busy all the time: then only they can shorten a step. At best they are busy only while
    trainers wait.
    """
    step_s, generation_s, update_s = phases.step_s, phases.generation_s, phases.update_s
    busy_s = step_s - generation_s
    yield from _bound(phases, "staleness_cap", step_s, busy_s)
    yield from _bound(phases, "double_generation", step_s - generation_s / 2.0, max(step_s / 2.0, busy_s))
    yield from _bound(phases, "half_update", step_s, step_s - update_s / 2.0)
    yield from _bound(phases, "hidden_update", step_s, step_s - update_s)
    for name, phase_s in _movable(phases):
        yield from _bound(phases, "hidden_phase", step_s, step_s - phase_s, phase=name)


def _movable(phases: StepPhases) -> Iterator[tuple[str, float]]:
    return ((name, phases.other_s[name]) for name in _MOVABLE if name in phases.other_s)


def _bound(
    phases: StepPhases,
    change: Change,
    longest_s: float,
    shortest_s: float,
    requires: Requirement | None = None,
    phase: str | None = None,
) -> Iterator[StepBound]:
    """Yield the bound for a step of shortest_s to longest_s; nothing if nothing would be left of the step."""
    if shortest_s > 0.0:
        yield StepBound(change, phases.step_s / longest_s, phases.step_s / shortest_s, phase, requires)
