"""Replay the run: the current layout by the model, beside the measured steady state.

Before the model predicts other layouts, it has to explain the one that it was fitted to. If the run leaves open how its
rollouts are scheduled, every scheduling that its facts allow is simulated, and the one that fits best is used for all
layouts. A synchronous run is replayed by its closed form: the event simulator has no step that waits for all its
samples and starts no others. Not covered: variation within the run, such as lengths that drift; the simulator repeats
the means of the steady state.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from rlscope.document import computed_field
from rlscope.model.analytic.synchronous import split_step
from rlscope.model.calibration import Calibration, UncalibratableError
from rlscope.model.forecast.predict import changed, simulated_run, why_never_trains
from rlscope.model.observed import Observed
from rlscope.model.policies import Delivery
from rlscope.model.simulate import Settings
from rlscope.model.simulate.results import Ages
from rlscope.model.system import Admission

ObservableName = Literal[
    "tokens_per_s",
    "step_s",
    "running_per_engine",
    "in_flight_samples",
    "queued_samples",
    "wait_samples_ratio",
    "wait_staleness_cap_ratio",
    "hold_backpressure_ratio",
    "hold_staleness_cap_ratio",
    "hold_other_ratio",
    "staleness_mean",
    "staleness_p95",
]
"""tokens_per_s: trained response tokens. step_s: period of an optimizer step. in_flight_samples: started, and neither
taken by the trainers nor dropped. wait_*: shares of the trainers' time. hold_*: shares of the engines' time without a
request, by the reason why there is none; other: environments, or nothing to do. staleness_*: of trained tokens, in
versions."""
ObservableUnit = Literal["tokens/s", "s", "requests", "samples", "ratio", "versions"]
ReplayMethod = Literal["simulation", "synchronous_form"]
"""synchronous_form: the closed form of a synchronous step."""

UNITS: Final[Mapping[ObservableName, ObservableUnit]] = {
    "tokens_per_s": "tokens/s",
    "step_s": "s",
    "running_per_engine": "requests",
    "in_flight_samples": "samples",
    "queued_samples": "samples",
    "wait_samples_ratio": "ratio",
    "wait_staleness_cap_ratio": "ratio",
    "hold_backpressure_ratio": "ratio",
    "hold_staleness_cap_ratio": "ratio",
    "hold_other_ratio": "ratio",
    "staleness_mean": "versions",
    "staleness_p95": "versions",
}
"""Units of the observables, in display order."""

MOST_RATE_MISFIT: Final = 0.10
"""Maximum error as a share of the measured rate: a model that is further off at the layout it was fitted to is not
trusted about others."""
MOST_OFF_RATIO: Final = 0.25
"""Share of the compared quantities: if this many are off, a rate that agrees may do so by chance."""
_UNRECORDED_RATIO: Final = 0.10
"""Share of the engines' time: more time than this without a state may hide time without requests."""
_SIZE_RATIO: Final = 0.10
"""Relative tolerance of a size or a time."""
_SHARE: Final = 0.05
"""Absolute tolerance of a share of time."""
_VERSIONS: Final = 0.25
"""Tolerance of staleness in versions, on top of 10%: publications come at whole versions."""
_BATCH_RATIO: Final = 0.10
"""Tolerance of a number of samples, in batches: queues fill and drain in batches."""
_MOST_MISFIT: Final = 5.0
"""Maximum misfit of one observable, in tolerances, so that none outvotes all others."""
_ABOUT_AS_GOOD: Final = 0.1
"""Margin, in tolerances, that a fit needs over one that the facts suggest first; less is simulation noise."""


@dataclass(frozen=True, slots=True)
class Observable:
    """One quantity of the current layout, measured over the steady state and replayed by the model."""

    name: ObservableName
    """The quantity."""
    measured: float | None
    """The measured value; None if it was not recorded."""
    replayed: float | None
    """The model's value; None if the method does not compute this quantity."""

    @computed_field
    @property
    def unit(self) -> ObservableUnit:
        """Unit of both values; a ratio is a share of time, 0 to 1."""
        return UNITS[self.name]

    @computed_field
    @property
    def misfit_ratio(self) -> float | None:
        """`replayed` over `measured`, less 1; None for shares and versions, and below one sample."""
        if self.unit in ("ratio", "versions") or self.measured is None or self.replayed is None or not self.measured:
            return None
        if self.unit == "samples" and self.measured < 1.0:
            return None
        return self.replayed / self.measured - 1.0

    @computed_field
    @property
    def difference(self) -> float | None:
        """`replayed` minus `measured`."""
        return None if self.measured is None or self.replayed is None else self.replayed - self.measured

    def misfit(self, batch_samples: float) -> float | None:
        """Absolute difference in tolerances; None if either value is missing."""
        if self.measured is None or self.difference is None:
            return None
        tolerance = {
            "ratio": _SHARE,
            "versions": _VERSIONS + _SIZE_RATIO * self.measured,
            "samples": _BATCH_RATIO * batch_samples + _SIZE_RATIO * self.measured,
        }.get(self.unit, _SIZE_RATIO * self.measured)
        return abs(self.difference) / tolerance if tolerance else math.inf


@dataclass(frozen=True, slots=True)
class Scheduling:
    """Scheduling of rollouts: everything that the run's facts may leave open."""

    delivery: Delivery
    """Unit that is put in the queue: a whole group or a single sample."""
    settings: Settings
    """Order and assignment of samples."""
    admission: Admission
    """Limits that hold the samplers back or drop samples."""
    turnaround_s: float = 0.0
    """Seconds that the place of a finished sample stays empty because its client is busy or far away."""
    delivered_after_ratio: float = 1.0
    """Share of that time after which the sample is delivered."""


@dataclass(frozen=True, slots=True)
class TriedScheduling:
    """A scheduling that is consistent with the facts of the run, and its fit."""

    scheduling: Scheduling
    """The scheduling."""
    misfit: float
    """Root mean square of the differences, each divided by its tolerance; infinite (null in JSON) if the model cannot
    run this scheduling."""
    rate_misfit_ratio: float | None
    """Replayed over measured trained tokens per second, less 1."""


@dataclass(frozen=True, slots=True)
class Replay:
    """The current layout as the model replays it, beside its measurements over the steady state."""

    compared: tuple[Observable, ...]
    """All quantities that were compared."""
    scheduling: Scheduling
    """The scheduling that fits the run best. The model uses it for every layout."""
    candidates: tuple[TriedScheduling, ...]
    """All schedulings that were tried, starting with the one in use."""
    method: ReplayMethod
    """Method of the replay."""
    batch_samples: float
    """Samples that trainers take at a time; tolerances of sample counts depend on it."""

    @property
    def rate(self) -> Observable:
        """Trained tokens per second."""
        return self.compared[0]

    @computed_field
    @property
    def rate_misfit_ratio(self) -> float | None:
        """Replayed over measured trained tokens per second, less 1; None if the model has no rate."""
        return self.rate.misfit_ratio

    @computed_field
    @property
    def explains(self) -> bool:
        """Whether the replayed rate is within 10% of the measured one."""
        off = self.rate.difference
        return off is not None and abs(off) <= MOST_RATE_MISFIT * (self.rate.measured or 0.0)

    @computed_field
    @property
    def out_of_tolerance(self) -> tuple[ObservableName, ...]:
        """Quantities beyond their tolerance, the largest deviation first."""
        misfits: list[tuple[float, ObservableName]] = [
            (each.misfit(self.batch_samples) or 0.0, each.name) for each in self.compared
        ]
        furthest = sorted(misfits, key=lambda one: -one[0])
        return tuple(name for misfit, name in furthest if misfit > 1.0)

    @property
    def is_rough(self) -> bool:
        """Whether MOST_OFF_RATIO or more of the observables that have both values are outside their tolerance."""
        known, off = sum(each.difference is not None for each in self.compared), len(self.out_of_tolerance)
        return off > 0 and off >= MOST_OFF_RATIO * known


def replay_run(calibration: Calibration, observed: Observed, candidates: Sequence[Scheduling]) -> Replay:
    """Replay the current layout with each scheduling (at least one), ordered by how strongly the facts suggest it.

    Raises UncalibratableError if none of them lets a step start; the message says why for the first one.
    """
    if calibration.synchronous:
        return _replay(calibration, observed, candidates[0])
    replays = [_replay(calibration, observed, each) for each in candidates]
    if all(each.rate.replayed is None for each in replays):
        why = why_never_trains(scheduled(calibration, candidates[0]), calibration.layout)
        raise UncalibratableError(f"the model cannot run the current layout under its limits: {why}")
    slower = _with_turnaround(calibration, observed, _best(replays))
    replays += [] if slower is None else [slower]
    chosen = _best(replays)
    others = [each.candidates[0] for each in replays if each is not chosen]
    return replace(chosen, candidates=(*chosen.candidates, *sorted(others, key=lambda each: each.misfit)))


def _best(found: Sequence[Replay]) -> Replay:
    """Return the replay with the least misfit, or an earlier one that is about as good.

    Replays that explain the run are preferred, since the advice rests on the rate.
    """
    fitting = [each for each in found if each.explains] or found
    least = min(each.candidates[0].misfit for each in fitting)
    return next(each for each in fitting if each.candidates[0].misfit <= least + _ABOUT_AS_GOOD)


def _with_turnaround(calibration: Calibration, observed: Observed, replay: Replay) -> Replay | None:
    """Replay again with places that stay empty between samples, if engines ran fewer requests than replayed.

    By Little's law, each place stays empty for the number of places that the replay fills and the run left empty,
    divided by the samples that finish per second. None if the run was as full as the replay, if nothing finished, or
    without sample starts: the passes alone do not say that a place stayed empty between two samples.
    """
    if observed.load.running_samples is None:
        return None
    running = next(each for each in replay.compared if each.name == "running_per_engine")
    batch, empty = replay.batch_samples, running.difference
    if empty is None or empty <= 0.0 or (running.misfit(batch) or 0.0) <= 1.0 or not observed.finished_samples:
        return None
    seconds = empty * observed.engines * observed.seconds / observed.finished_samples
    delivery_s = observed.scheduling.delivery_s
    delivered_after = 1.0 if delivery_s is None else min(1.0, delivery_s / seconds)
    slower = replace(replay.scheduling, turnaround_s=seconds, delivered_after_ratio=delivered_after)
    return _replay(calibration, observed, slower)


def scheduled(calibration: Calibration, scheduling: Scheduling) -> Calibration:
    """Replace the scheduling in all systems of the calibration, which share one workload."""
    own = calibration.system.workload
    workload = replace(
        own,
        delivery=scheduling.delivery,
        environment_s=own.environment_s + scheduling.turnaround_s,
        turnaround_s=own.turnaround_s + scheduling.turnaround_s,
        delivered_after_ratio=scheduling.delivered_after_ratio,
    )
    systems = changed(calibration, lambda each: replace(each, workload=workload, admission=scheduling.admission))
    return replace(systems, settings=scheduling.settings)


def _replay(calibration: Calibration, observed: Observed, scheduling: Scheduling) -> Replay:
    """Replay the current layout with one scheduling; nothing is replayed if no step starts."""
    batch, measured = calibration.system.workload.samples_per_batch, measured_of(observed)
    method: ReplayMethod = "synchronous_form" if calibration.synchronous else "simulation"
    replayed = _synchronous(calibration) if calibration.synchronous else _simulated(calibration, scheduling)
    compared = tuple(Observable(name, measured[name], replayed.get(name)) for name in UNITS)
    tried = TriedScheduling(scheduling, _misfit(compared, batch), compared[0].misfit_ratio)
    return Replay(compared, scheduling, (tried,), method, batch)


def _misfit(compared: Sequence[Observable], batch_samples: float) -> float:
    """Root mean square of the misfits; without the step time, which only repeats the rate."""
    misfits = [each.misfit(batch_samples) for each in compared if each.name != "step_s"]
    capped = [min(each, _MOST_MISFIT) for each in misfits if each is not None]
    return math.sqrt(sum(each * each for each in capped) / len(capped)) if capped else math.inf


def measured_of(observed: Observed) -> dict[ObservableName, float | None]:
    """Return the measured value of every observable."""
    load, ages = observed.load, Ages(observed.staleness) if observed.staleness else None
    return {
        "tokens_per_s": observed.trained_tokens_per_s,
        "step_s": float(observed.steps.period_s.mean()),
        "running_per_engine": _running_per_engine(observed),
        "in_flight_samples": load.in_flight_samples,
        "queued_samples": load.queued_samples,
        "wait_samples_ratio": load.wait_samples_ratio,
        "wait_staleness_cap_ratio": load.wait_staleness_cap_ratio,
        "hold_backpressure_ratio": _held_ratio(observed, "backpressure"),
        "hold_staleness_cap_ratio": _held_ratio(observed, "staleness_cap"),
        "hold_other_ratio": _held_ratio(observed, None),
        "staleness_mean": None if ages is None else ages.mean,
        "staleness_p95": None if ages is None else float(ages.percentile(0.95)),
    }


def _running_per_engine(observed: Observed) -> float | None:
    """Return the mean running requests, from the passes if samples have no start. None if neither was recorded."""
    if observed.load.running_samples is not None:
        return observed.load.running_samples / observed.engines
    passes = observed.passes
    running_s = float(passes.running @ (passes.busy_s + passes.between_s))
    return running_s / observed.engine_s or None


def _held_ratio(observed: Observed, reason: str | None) -> float | None:
    """Share of the engines' time without a request for a reason; reason None: any reason without a name here.

    None if engines record no such time and much of their time has no state, since it may be hidden there.
    """
    held_s = {why: seconds for (state, why), seconds in observed.engine_state_s.items() if state == "no_requests"}
    if not held_s and observed.unattributed_engine_s > _UNRECORDED_RATIO * observed.engine_s:
        return None
    others_s = (seconds for why, seconds in held_s.items() if why not in ("backpressure", "staleness_cap"))
    return (sum(others_s) if reason is None else held_s.get(reason, 0.0)) / observed.engine_s


def _simulated(calibration: Calibration, scheduling: Scheduling) -> dict[ObservableName, float]:
    """Return the observables of a simulation; none if no step starts."""
    run = simulated_run(scheduled(calibration, scheduling), calibration.layout)
    if run is None:
        return {}
    idle_s, trainers = run.idle_s, run.trainer_seconds
    return {
        "tokens_per_s": run.trained_tokens_per_s,
        "step_s": run.step_s / calibration.steps_per_version,
        "running_per_engine": run.mean_running,
        "in_flight_samples": run.mean_in_flight_samples,
        "queued_samples": run.mean_queued_samples,
        "wait_samples_ratio": trainers.wait_samples_s / run.seconds,
        "wait_staleness_cap_ratio": trainers.wait_staleness_cap_s / run.seconds,
        "hold_backpressure_ratio": idle_s["backpressure"] / run.engine_s,
        "hold_staleness_cap_ratio": idle_s["staleness_cap"] / run.engine_s,
        "hold_other_ratio": idle_s["environment"] / run.engine_s,
        "staleness_mean": run.staleness.tokens.mean,
        "staleness_p95": float(run.staleness.tokens.percentile(0.95)),
    }


def _synchronous(calibration: Calibration) -> dict[ObservableName, float]:
    """Return the observables of a synchronous step by its closed form: every token has the newest version."""
    step = split_step(calibration.system, calibration.layout)
    if step is None:
        return {}
    return {
        "tokens_per_s": step.trained_tokens_per_s,
        "step_s": step.step_s / calibration.steps_per_version,
        "wait_samples_ratio": 1.0 - (step.train_s + calibration.system.update.trainer_blocked_s) / step.step_s,
        "staleness_mean": 0.0,
        "staleness_p95": 0.0,
    }
