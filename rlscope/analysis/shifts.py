"""Events of a run: the steps at which step time, throughput, lengths, staleness or reward changed for long.

Changes at the same time are one event, with the cause that was recorded then. A change of lengths changes the step time
too, and is not called a change of speed.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

import polars as pl

from rlscope.model.numerics.changepoints import level_changes

ShiftedQuantity = Literal["step_s", "trained_tokens_per_s", "response_tokens", "staleness_versions", "reward"]
ShiftCause = Literal["lengths", "engines", "weight_updates", "other_activities", "training", "waits"]
"""lengths: longer or shorter responses. engines: a sampler came or went. The others are the phase of a step that the
change of step time is mostly in: waits are those of the trainers, other activities are checkpoints and evaluations."""

_LEAST_RATIO: Final = 0.10
"""Least change of a time, a rate or a length: smaller ones change no decision."""
_LEAST_VERSIONS: Final = 0.5
_SAME_STEPS: Final = 5
"""Most steps between changes of one event: each is found within three steps."""
_MOSTLY_RATIO: Final = 0.5
"""Least share of the change of step time in what is called its cause: a phase, or the lengths (of its logarithm)."""
_PHASES: Final[Mapping[ShiftCause, tuple[str, ...]]] = {
    "weight_updates": ("publish_gpu_s",),
    "other_activities": ("other_gpu_s", "logprobs_gpu_s"),
    "training": ("train_gpu_s",),
    "waits": ("wait_gpu_s",),
}
"""Columns of trainer_steps by cause."""
_TIMES: Final = (("step_s",), *_PHASES.values())
_PHASE_STEPS: Final = 20
"""Steps before and after a change whose phases are compared."""


@dataclass(frozen=True, slots=True)
class Shift:
    """A lasting change of one quantity."""

    quantity: ShiftedQuantity
    """step_s: from the end of one step to the next. response_tokens: mean of a step's samples, or of its tokens with
    prompts if responses are not recorded. staleness_versions and reward: mean of a step."""
    before: float
    """Median over the steps of the level before."""
    after: float
    """Median over the steps of the level after."""

    @property
    def change_ratio(self) -> float | None:
        """Growth from before to after; None if the level before is not positive."""
        return self.after / self.before - 1.0 if self.before > 0.0 else None


@dataclass(frozen=True, slots=True)
class RunEvent:
    """Quantities that changed at the same time."""

    step: int
    """First optimizer step of the new levels."""
    time_ns: int
    """End of the step before, UTC epoch."""
    cause: ShiftCause | None
    """The recorded cause; None if nothing recorded explains it."""
    workers: tuple[str, ...]
    """Samplers that came or went at that time."""
    shifts: tuple[Shift, ...]
    """The changes, the cause before its consequences."""


class _Series(NamedTuple):
    """A quantity by step, and the least change that counts, in the unit of `level`."""

    quantity: ShiftedQuantity
    values: pl.Series
    least: float
    level: Callable[[float], float]


def run_events(answers: Mapping[str, pl.DataFrame]) -> tuple[RunEvent, ...]:
    """Return what changed during a run, in order, from training_steps, trainer_steps, worker_extents and, if it was
    asked, token_staleness_by_step.
    """
    steps = _by_step(answers)
    found = [each for series in _series(steps) for each in _shifts(series, steps["step"])]
    groups: list[list[tuple[int, Shift]]] = []
    for step, shift in sorted(found, key=lambda each: each[0]):
        if not groups or step - groups[-1][0][0] > _SAME_STEPS:
            groups.append([])
        groups[-1].append((step, shift))
    # Staleness swings with the queue where nothing else changes.
    lasting = [group for group in groups if any(shift.quantity != "staleness_versions" for _, shift in group)]
    return tuple(_event(steps, group, answers["worker_extents"]) for group in lasting)


def _by_step(answers: Mapping[str, pl.DataFrame]) -> pl.DataFrame:
    """Return a row per step with a duration, with the trainers' seconds by phase."""
    phases = answers["trainer_steps"].select(
        "step", *(pl.col(name) / pl.col("trainer_gpus") for names in _PHASES.values() for name in names)
    )
    steps = answers["training_steps"].filter(pl.col("step_s") > 0).join(phases, on="step", how="left")
    staleness = answers.get("token_staleness_by_step")
    if staleness is not None:
        steps = steps.join(staleness.select("step", "staleness_mean"), on="step", how="left")
    return steps.sort("step")


def _series(steps: pl.DataFrame) -> list[_Series]:
    log_least = math.log1p(_LEAST_RATIO)
    tokens = steps["response_tokens"] if steps["response_tokens"].null_count() == 0 else steps["tokens"]
    made = [
        _Series("step_s", steps["step_s"], log_least, math.log),
        _Series("trained_tokens_per_s", tokens / steps["step_s"], log_least, math.log),
        _Series("response_tokens", tokens / steps["samples"], log_least, math.log),
    ]
    if "staleness_mean" in steps.columns:
        made.append(_Series("staleness_versions", steps["staleness_mean"], _LEAST_VERSIONS, float))
    reward = steps["reward_mean"]
    spread = None if reward.null_count() else reward.std()
    if isinstance(spread, float) and spread > 0.0:
        made.append(_Series("reward", reward, spread, float))
    return made


def _shifts(series: _Series, steps: pl.Series) -> list[tuple[int, Shift]]:
    """Return the shifts of a quantity with their steps; none if some step has no value."""
    values = series.values.to_list()
    if any(each is None or not math.isfinite(each) or (series.level is math.log and each <= 0.0) for each in values):
        return []
    changes = level_changes([series.level(each) for each in values], series.least)
    back = math.exp if series.level is math.log else float
    return [(steps[each.place], Shift(series.quantity, back(each.before), back(each.after))) for each in changes]


def _event(steps: pl.DataFrame, group: Sequence[tuple[int, Shift]], extents: pl.DataFrame) -> RunEvent:
    step, _ = min(group, key=lambda each: (each[1].quantity != "step_s", each[0]))
    place = steps["step"].to_list().index(step)
    near = steps.slice(max(0, place - _SAME_STEPS), 2 * _SAME_STEPS)
    workers = _came_or_went(extents, int(near["end_ns"][0]), int(near["end_ns"][-1]))
    shifts: dict[ShiftedQuantity, Shift] = {shift.quantity: shift for _, shift in group}
    cause = _cause(steps, place, shifts, workers)
    first: ShiftedQuantity = "response_tokens" if cause == "lengths" else "step_s"
    told = sorted(shifts.values(), key=lambda each: each.quantity != first)
    before_ns = int(steps["end_ns"][max(0, place - 1)])
    return RunEvent(step, before_ns, cause, workers if cause == "engines" else (), tuple(told))


def _came_or_went(extents: pl.DataFrame, from_ns: int, to_ns: int) -> tuple[str, ...]:
    """Return the samplers that started or ended in a period."""
    edges = pl.col("start_ns").is_between(from_ns, to_ns) | pl.col("end_ns").is_between(from_ns, to_ns)
    return tuple(extents.filter(edges, role="sampler")["worker_id"].sort())


def _cause(
    steps: pl.DataFrame, place: int, shifts: Mapping[ShiftedQuantity, Shift], workers: Sequence[str]
) -> ShiftCause | None:
    lengths, time = shifts.get("response_tokens"), shifts.get("step_s")
    if lengths is not None and (time is None or _explains(lengths, time)):
        return "lengths"
    if workers:
        return "engines"
    is_timed = time is not None or "trained_tokens_per_s" in shifts
    return _phase_of(steps, place) if is_timed else None


def _explains(lengths: Shift, time: Shift) -> bool:
    """Return whether step times in proportion to lengths make up most of the change of step time."""
    changed = math.log(time.after / time.before)
    return math.log(lengths.after / lengths.before) * changed >= _MOSTLY_RATIO * changed**2


def _phase_of(steps: pl.DataFrame, place: int) -> ShiftCause | None:
    """Return the phase that most of the change of step time at a place is in."""
    first = max(0, place - _PHASE_STEPS)
    near = steps.slice(first, place - first), steps.slice(place, _PHASE_STEPS)
    means = [[float(rows.select(pl.sum_horizontal(names).mean()).item() or 0.0) for rows in near] for names in _TIMES]
    (before_s, after_s), *phases = means
    grown: dict[ShiftCause, float] = {
        cause: after - before for cause, (before, after) in zip(_PHASES, phases, strict=True)
    }
    most = max(grown, key=lambda cause: grown[cause] * (after_s - before_s))
    return most if grown[most] * (after_s - before_s) >= _MOSTLY_RATIO * (after_s - before_s) ** 2 > 0.0 else None
