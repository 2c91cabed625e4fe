"""Actions that could make a run faster, each on its own: its gain, and the cause that it addresses.

An action is a layout, a limit moved by one step, a cost removed, or one side made 10% faster. Each is applied alone to
the calibrated system, which is predicted again. `ranking` orders the actions.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final, Literal, get_args

import numpy as np

from rlscope.model.analytic.synchronous import colocated_step
from rlscope.model.arrays import Reals
from rlscope.model.calibration import Calibration
from rlscope.model.causes import Cause, LossCause
from rlscope.model.decode.measurements import Grade
from rlscope.model.engine_speeds import slow_engine_names, speed_without_stragglers
from rlscope.model.estimate import Estimate
from rlscope.model.forecast.change import (
    Change,
    applied,
    with_checkpoints,
    with_engine_speed,
    with_limits,
    with_trainer_speed,
)
from rlscope.model.forecast.layouts import Forecast, below_ceiling, trainer_rate_bound, with_noise_of_work
from rlscope.model.forecast.predict import changed, predict
from rlscope.model.forecast.price import NOTABLE_RATIO, Price, StalenessForecast, synchronous_price
from rlscope.model.forecast.recommend import (
    SURE_RATIO,
    WORTHWHILE_RATIO,
    Grounds,
    share_gaining,
)
from rlscope.model.numerics.stratified import normals
from rlscope.model.observed import Observed
from rlscope.model.system import CHECKPOINTS_PHASE, Admission, Layout, System, WeightUpdateCost

ActionKind = Literal["change", "probe", "fresher", "cheaper", "fix"]
"""change: a setting that is at least 90% likely to gain 5% or more. probe: a less certain setting that is worth a try,
or one with a high price. fresher: a lower limit that keeps the rate, with fewer dropped tokens or fresher samples.
cheaper: fewer GPUs that keep the rate. fix: not a setting; its gain assumes that the whole cost is removed, or that one
side is 10% faster."""
ActionWhat = Literal[
    "layout",
    "running_limit",
    "asynchronous",
    "staleness_cap",
    "in_flight_limit",
    "running_samples_limit",
    "queue_capacity_samples",
    "publish_every",
    "weight_updates",
    "environment",
    "slow_engines",
    "trainer_speed",
    "engine_speed",
    "checkpoints",
    "colocated",
]
"""Object of an action. layout: the split of the GPUs, with the running requests of an engine. asynchronous: also the
split, if it differs. trainer_speed, engine_speed: one side made 10% faster, by any means. colocated: every GPU
alternates between sampling and training."""

SPEEDS: Final = frozenset({"trainer_speed", "engine_speed"})
_CHANGES_TRAINERS: Final = frozenset({"trainer_speed", "checkpoints", "colocated"})
_SPARES_PUBLISHING: Final = frozenset({"publish_every", "weight_updates"})
DRAWS: Final = 60
"""Number of draws: three lie beyond each end of the interval."""
_FASTER: Final = 1.1
"""Speedup of one side: about what a few days of work on it can achieve."""
_TWICE: Final = 2.0
"""Speedup of one side that reveals what the side costs, as if it had twice the GPUs. With a larger speedup, a slow side
can no longer be distinguished from a limit on samples in flight, which a side that takes no time never reaches."""
_FORM_ERROR: Final = 0.05
"""Log deviation of the gain of a change or removal if every parameter is known: the closed forms err in both the
current and the changed rate, and half of that error is shared."""
_SEED: Final = 4
_SEEDED_CAUSES: Final = 6
"""Causes whose removal is solved separately, the first ones in `LossCause`; keeps the seeds below distinct."""
_LOOSENS_CAP: Final = frozenset({"staleness_cap", "publish_every"})
"""Actions that let samples grow older in optimizer steps than the cap did."""
SETTINGS: Final[Mapping[ActionWhat, str]] = {
    "running_limit": "max_running",
    "staleness_cap": "max_staleness",
    "in_flight_limit": "max_in_flight_samples",
    "running_samples_limit": "max_running_samples",
    "queue_capacity_samples": "queue_capacity_samples",
}
"""Names in run.json of the settings that actions change."""
_LIMITS: Final[tuple[ActionWhat, ...]] = ("in_flight_limit", "running_samples_limit", "queue_capacity_samples")
"""Actions that move a limit on numbers of samples."""
_HOLDING_LIMITS: Final = ("max_staleness", "max_in_flight_samples", "max_running_samples")
"""Limits in `Admission` that keep samples from starting, or drop them."""
_LIMIT_FACTOR: Final = 2
"""Limits are doubled: after a smaller raise the limit may be reached again at once."""
_WASTED_RATIO: Final = 0.05
"""Least share of the generated tokens that a lower limit has to save from being dropped."""
_OLD_STEPS: Final = 3.0
"""Least p95 staleness that a lower limit is sought for."""
_FRESHER_STEPS: Final = 1.0
"""Least fall of p95 staleness in steps that makes a lower limit worth listing."""
_FRESHER_RATIO: Final = 0.25
"""Least fall of p95 staleness as a share of its current value."""
_SAME_RATE: Final = Estimate(-0.01, -0.06, np.inf)
"""Least gain, median and lower end of the interval, at which the rate counts as kept."""
_QUEUED_BATCHES: Final = (2.0, 1.0)
"""Lower queue capacities that are tried, in batches, the roomiest first."""
_IN_FLIGHT_BATCHES: Final = (3.0, 2.0, 1.5)
"""Lower limits in flight that are tried, which also count running samples."""
_LOWER_RATIO: Final = 0.75
"""A limit is not lowered to more than this share of it."""
_CAP_STEPS: Final = (1, 2, 4)
"""Versions to raise a staleness cap by; the smallest raise that gains WORTHWHILE_RATIO is used."""


@dataclass(frozen=True, eq=False)
class Action:
    """One action on its own."""

    kind: ActionKind
    what: ActionWhat
    cause: LossCause
    """Cause that the action addresses."""
    before: Layout | float | None
    """Current setting; None if there is none."""
    after: Layout | float | None
    """Proposed setting; None if it is removed."""
    gains: Reals = field(repr=False)
    """Trained tokens per second over the current rate, minus 1, in every draw."""
    price_before: Price
    """Price of the current layout."""
    price: Price
    """Price after the action."""
    grade: Grade | None
    """Distance of the decode passes from those that the run visited."""
    is_staler: bool = False
    """Whether the action raises staleness beyond what is recommended unasked."""
    engines: tuple[str, ...] = ()
    """Names of the slow engines, for slow_engines; empty if engines have no names."""
    in_flight_limit: int | None = None
    """Limit on samples in flight that belongs to the change and that the run lacks: without it the queue would grow
    without bound. Gain and price are those with the limit."""

    @cached_property
    def gain_ratio(self) -> Estimate:
        """Median gain and its interval."""
        return Estimate.of(self.gains)

    @property
    def worthwhile_probability(self) -> float:
        """Share of the draws, 0..1, that gain 5% or more."""
        return share_gaining(self.gains)

    @property
    def staleness(self) -> StalenessForecast | None:
        """Staleness after the action; None if the queue grows without bound."""
        return self.price.staleness

    @property
    def takes_engineering(self) -> bool:
        """Whether the action takes work on code or machines instead of a setting: an overlap takes another loop."""
        return self.kind == "fix" or self.what == "asynchronous"

    def steps_per_version(self, now: float) -> float:
        """Return the optimizer steps of a version after the action; now: those of the current run."""
        return self.after if self.what == "publish_every" and isinstance(self.after, int | float) else now

    @property
    def steps_ratio(self) -> float:
        """Optimizer steps of a version after the action, over those before it."""
        before, after = self.before, self.after
        if self.what != "publish_every" or not isinstance(before, float) or not isinstance(after, float):
            return 1.0
        return after / before

    @property
    def lowers_limit(self) -> bool:
        """Whether it lowers or introduces a limit on waiting samples."""
        if self.what not in ("in_flight_limit", "queue_capacity_samples") or not isinstance(self.after, int):
            return False
        return not isinstance(self.before, int) or self.after < self.before


class Counterfactuals:
    """The current layout with one thing changed, beside itself."""

    def __init__(self, calibration: Calibration, observed: Observed, today: Forecast, grounds: Grounds) -> None:
        # Errors that all layouts share cancel in a gain.
        self._calibration = replace(calibration, draws=calibration.draws[:DRAWS], level_log_sd=0.0)
        self._observed, self._today, self._grounds, self._layout = observed, today, grounds, calibration.layout
        self._now = predict(self._calibration, calibration.layout, is_reference=True)
        draws = len(self._calibration.draws)
        self._ceilings = {each: trainer_rate_bound(observed, draws, publishing=each) for each in (True, False)}

    def actions(self, removed: Mapping[LossCause, Reals]) -> Iterator[Action]:
        """Yield every action on the current layout that gains something.

        removed: gains if a cause were gone. What cannot gain enough to be listed is not solved: a limit raised gains no
        more than the limit removed, and a side made 10% faster no more than one made twice as fast.
        """
        for tried in (*self._fixes(removed), *self._limits(removed)):
            if tried is not None and tried.gain_ratio.value > 0.0:
                yield tried

    def overlapped(self) -> Action | None:
        """Keep a synchronous run's split, with samplers that run a step ahead of the trainers; None if none starts."""
        layout, batch = self._layout, self._calibration.system.workload.samples_per_step
        ahead = Admission(queue_capacity_samples=batch, max_in_flight_samples=2 * batch)
        asked = changed(self._calibration, lambda system: replace(system, admission=ahead))
        forecast = predict(replace(asked, synchronous=False), layout)
        return self._action("change", "asynchronous", Cause.LOCKSTEP, layout, layout, forecast)

    def fresher(self) -> Action | None:
        """Lower a limit on waiting samples until the rate would fall; None if that would save little.

        Where neither the queue nor the samples in flight are limited, a limit in flight is introduced.
        """
        price, admission = self._today.price, self._calibration.system.admission
        if self._calibration.synchronous or not _is_wasteful(price):
            return None
        batch = self._calibration.system.workload.samples_per_step
        counted = batch if admission.in_flight_until_trained else 0
        in_flight = [round(each * batch) + counted for each in _IN_FLIGHT_BATCHES]
        lowered = [self._lowered("in_flight_limit", admission.max_in_flight_samples, in_flight)]
        if admission.queue_capacity_samples is not None and admission.queue_policy == "wait":
            queued = [round(each * batch) for each in _QUEUED_BATCHES]
            lowered.insert(0, self._lowered("queue_capacity_samples", admission.queue_capacity_samples, queued))
        found = [each for each in lowered if each is not None]
        return min(found, key=lambda each: (each.price.dropped_percent, each.price.p95_steps), default=None)

    def _lowered(self, what: ActionWhat, before: int | None, tried: Sequence[int]) -> Action | None:
        """Lower one limit as long as the rate is kept and more is saved; None if too little is saved."""
        best: Action | None = None
        for most in tried:
            if before is not None and most > _LOWER_RATIO * before:
                continue
            forecast = self._solve(lambda system, most=most: with_limits(system, **{SETTINGS[what]: most}))
            if not forecast.tokens_per_s or not keeps_rate(forecast.gains_over(self._now)):
                break
            price = self._grounds.anchor.moved(forecast.price)
            if _saves(price, self._today.price if best is None else best.price):
                best = self._fresher(what, before, most, forecast)
        return best

    def _fresher(self, what: ActionWhat, before: int | None, after: int, forecast: Forecast) -> Action | None:
        """Build the action of a lower limit: fresher if it gains too little to be a change."""
        is_capped = self._calibration.system.admission.max_staleness is not None
        cause = Cause.STALENESS_CAP if is_capped else Cause.TRAINERS
        action = self._action("change", what, cause, before, after, forecast)
        if action is None or action.gain_ratio.value >= WORTHWHILE_RATIO:
            return action
        # The rate is known to be kept, so the error of two unrelated layouts does not apply.
        gains = self._below_ceiling(what, forecast.gains_over(self._now), forecast)
        return replace(action, kind="fresher", gains=with_noise_of_work(gains, self._observed), is_staler=False)

    def colocated(self, against: LossCause) -> Action | None:
        """Let every GPU alternate between sampling and training; None if that gains too little or cannot run.

        The cost of switching between the two, and whether both fit on a GPU, are unknown.
        """
        calibration, layout = self._calibration, self._layout
        best = colocated_step(calibration.system, layout.gpus, layout.max_running)
        least = (1.0 + WORTHWHILE_RATIO) * self._now.median_rate
        if best is None or best.trained_tokens_per_s < least:
            return None
        steps = [colocated_step(draw, layout.gpus, layout.max_running) for draw in calibration.draws]
        rates = np.array([0.0 if step is None else step.trained_tokens_per_s for step in steps])
        price = synchronous_price(calibration.system.workload.lengths)
        forecast = replace(self._now, drawn_tokens_per_s=rates, price=price)
        return self._action("fix", "colocated", against, None, None, forecast)

    def removals(self) -> dict[LossCause, Reals]:
        """Gains of every draw if a cause were gone: a side at twice its speed, no limit, no lockstep."""
        system = self._calibration.system
        changes: dict[LossCause, Callable[[System], System]] = {
            Cause.SAMPLERS: lambda each: with_engine_speed(each, _TWICE),
            Cause.TRAINERS: lambda each: with_trainer_speed(each, _TWICE),
        }
        has_limits = any(getattr(system.admission, name) is not None for name in _HOLDING_LIMITS)
        if has_limits and not self._calibration.synchronous:
            changes[Cause.STALENESS_CAP] = _without_limits
        solved: dict[LossCause, Forecast] = {cause: self._solve(change) for cause, change in changes.items()}
        if self._calibration.synchronous:
            asynchronous = replace(self._calibration, synchronous=False)
            solved[Cause.LOCKSTEP] = predict(asynchronous, self._layout, holds=True)
        return {cause: self._removal(cause, each) for cause, each in solved.items() if each.tokens_per_s}

    def _removal(self, cause: LossCause, forecast: Forecast) -> Reals:
        gains = self._with_error(forecast.gains_over(self._now), -1 - get_args(LossCause).index(cause))
        if cause != Cause.TRAINERS:
            gains = self._below_ceiling(None, gains, forecast)
        return np.clip(gains, 0.0, _TWICE - 1.0 if cause in (Cause.SAMPLERS, Cause.TRAINERS) else np.inf)

    def _below_ceiling(self, what: ActionWhat | None, gains: Reals, forecast: Forecast) -> Reals:
        """Cap the gain of what leaves the trainers' work as it is at that of trainers that never wait."""
        if what in _CHANGES_TRAINERS:
            return gains
        return below_ceiling(gains, self._ceilings[what not in _SPARES_PUBLISHING], forecast, self._now)

    def _with_error(self, gains: Reals, number: int, error_ratio: float = 1.0) -> Reals:
        """Add the error of the closed form that the changed solution does not share with the current one.

        number: identifies the change; each change has its own error, identical wherever it is solved.
        error_ratio: a side that is 10% faster shares nearly all of the current error, so its own error is smaller in
        proportion to the change, relative to a doubling (own assumption).
        """
        rng, error = np.random.default_rng([_SEED, number + _SEEDED_CAUSES]), _FORM_ERROR * error_ratio
        return (1.0 + gains) * np.exp(self._calibration.error_ratio * error * normals(rng, gains.size)) - 1.0

    def _fixes(self, removed: Mapping[LossCause, Reals]) -> Iterator[Action | None]:
        system, observed = self._calibration.system, self._observed
        seconds = system.update.seconds
        if seconds or not system.update.kv_kept:
            free = WeightUpdateCost()
            yield self._fix("weight_updates", Cause.WEIGHT_UPDATES, seconds, lambda each: replace(each, update=free))
        # If no environment was recorded, this is the clients' time between two samples.
        if system.workload.environment_s and observed.environment_samples:
            workload = replace(system.workload, environment_s=0.0, environment_waits_s=())
            seconds = system.workload.environment_s
            yield self._fix("environment", Cause.ENVIRONMENT, seconds, lambda each: replace(each, workload=workload))
        saved_s = self._checkpoint_s()
        if saved_s:
            yield self._fix("checkpoints", Cause.CHECKPOINTS, saved_s, lambda each: with_checkpoints(each, -saved_s))
        slowness = self._calibration.engine_slowness
        if slowness is not None and speed_without_stragglers(observed.passes, system.engine.curve) > 1.0:
            median, names = float(np.median(slowness)), slow_engine_names(observed.passes, system.engine.curve)
            even = changed(self._calibration, lambda each: with_engine_speed(each, 1.0 / median))
            forecast = predict(replace(even, engine_slowness=None), self._layout)
            action = self._action("fix", "slow_engines", Cause.SAMPLERS, None, None, forecast, within=(0.0, np.inf))
            yield action and replace(action, engines=names)
        if _is_worth_solving(Cause.SAMPLERS, removed):
            yield self._fix("engine_speed", Cause.SAMPLERS, 1.0, lambda each: with_engine_speed(each, _FASTER), _FASTER)
        if _is_worth_solving(Cause.TRAINERS, removed):
            yield self._fix(
                "trainer_speed", Cause.TRAINERS, 1.0, lambda each: with_trainer_speed(each, _FASTER), _FASTER
            )

    def _checkpoint_s(self) -> float:
        """Seconds per version that trainers save or evaluate, out of everything in the phase of that name."""
        observed = self._observed
        lost_s = self._grounds.lost_gpu_s.get(Cause.CHECKPOINTS, 0.0) / max(1, observed.trainer_gpus)
        phase_s = float(observed.steps.other_s.sum())
        held = [each for each in self._calibration.system.trainer.phases if each.name == CHECKPOINTS_PHASE]
        return min(1.0, lost_s / phase_s) * held[0].step_s if phase_s and held else 0.0

    def _limits(self, removed: Mapping[LossCause, Reals]) -> Iterator[Action | None]:
        if self._calibration.synchronous:
            return
        admission = self._calibration.system.admission
        is_capped = _is_worth_solving(Cause.STALENESS_CAP, removed)
        if admission.max_staleness is not None and is_capped:
            yield self._raised_cap(admission.max_staleness)
        for what in _LIMITS:
            limit, holds_trainers = getattr(admission, SETTINGS[what]), what == "queue_capacity_samples"
            cause = Cause.TRAINERS if holds_trainers else Cause.STALENESS_CAP
            if limit is not None and (is_capped or cause != Cause.STALENESS_CAP):
                yield self._limit(what, cause, limit, _LIMIT_FACTOR * limit)
        yield self._rarer_publications()

    def _raised_cap(self, cap: int) -> Action | None:
        """Raise the cap by the fewest versions that gain enough, or by one if no raise does."""
        tried = list[Action]()
        for steps in _CAP_STEPS:
            action = self._limit("staleness_cap", Cause.STALENESS_CAP, cap, cap + steps)
            if action is None or action.gain_ratio.value >= WORTHWHILE_RATIO:
                return action or next(iter(tried), None)
            tried.append(action)
        return tried[0]

    def _rarer_publications(self) -> Action | None:
        """Publish half as often: each version costs the same, and there are half as many."""
        system, now = self._calibration.system, self._calibration.steps_per_version
        if not system.update.seconds:
            return None
        after = max(2, round(_LIMIT_FACTOR * now))
        rarer = applied(Change(publish_every=after), system.workload, now, "admission")
        forecast = self._solve(rarer, holds=True)
        return self._action("change", "publish_every", Cause.WEIGHT_UPDATES, now, float(after), forecast)

    def _fix(
        self,
        what: ActionWhat,
        cause: LossCause,
        before: float | None,
        change: Callable[[System], System],
        after: float | None = None,
    ) -> Action | None:
        # Removing a cost slows nothing down, and a side that is 10% faster gains at most 10%.
        most = _FASTER - 1.0 if what in SPEEDS else np.inf
        return self._action("fix", what, cause, before, after, self._solve(change), within=(0.0, most))

    def _limit(self, what: ActionWhat, cause: LossCause, before: int, after: int) -> Action | None:
        forecast = self._solve(lambda system: with_limits(system, **{SETTINGS[what]: after}), holds=True)
        return self._action("change", what, cause, before, after, forecast)

    def _action(
        self,
        kind: ActionKind,
        what: ActionWhat,
        cause: LossCause,
        before: Layout | float | None,
        after: Layout | float | None,
        forecast: Forecast,
        *,
        within: tuple[float, float] = (-1.0, np.inf),
    ) -> Action | None:
        """Build an action from its forecast; None if that never trains.

        within: bounds on the gain, whatever the error of the model.
        """
        if not forecast.tokens_per_s:
            return None
        error_ratio = np.log(_FASTER) / np.log(_TWICE) if what in SPEEDS else 1.0
        known = forecast.gains_over(self._now)
        gains = np.clip(self._with_error(known, get_args(ActionWhat).index(what), error_ratio), *within)
        gains = self._below_ceiling(what, gains, forecast)
        is_sure = share_gaining(gains, self._grounds.untested_log) >= SURE_RATIO
        action = Action(
            kind="probe" if kind == "change" and not is_sure else kind,
            what=what,
            cause=cause,
            before=before,
            after=after,
            gains=gains,
            price_before=self._today.price,
            price=self._grounds.anchor.moved(forecast.price),
            grade=self._today.grade,
            in_flight_limit=forecast.in_flight_limit,
        )
        return replace(action, is_staler=kind == "change" and not self._affords(action))

    def _affords(self, action: Action) -> bool:
        """Whether samples stay fresh enough. A version that spans more steps is staler by the same factor."""
        grounds, staleness = self._grounds, action.staleness
        if action.what in _LOOSENS_CAP:
            grounds = replace(grounds, capped=False)
        if staleness:
            staleness = replace(staleness, steps_per_version=staleness.steps_per_version * action.steps_ratio)
        return grounds.within_staleness_budget(staleness)

    def _solve(self, change: Callable[[System], System], *, holds: bool = False) -> Forecast:
        """Predict the current layout with a change. holds: a queue that would grow gets a limit on its samples."""
        return predict(changed(self._calibration, change), self._layout, holds=holds)


def _is_worth_solving(cause: LossCause, removed: Mapping[LossCause, Reals]) -> bool:
    return cause not in removed or float(np.median(removed[cause])) >= WORTHWHILE_RATIO


def keeps_rate(gains: Reals) -> bool:
    """Whether an action costs no throughput; gains: in every draw."""
    gain_ratio = Estimate.of(gains)
    return gain_ratio.value >= _SAME_RATE.value and gain_ratio.low >= _SAME_RATE.low


def _is_wasteful(price: Price) -> bool:
    """Whether so much is dropped, or samples are so old, that a lower limit can save something."""
    dropped = price.dropped_ratio
    return price.p95_steps >= _OLD_STEPS or (dropped is not None and dropped.value >= _WASTED_RATIO)


def _saves(price: Price, before: Price) -> bool:
    """Whether a price is notably lower than before in drops or staleness, and not higher in the other."""
    if price.dropped_ratio is None or price.staleness is None or price.is_high(before):
        return False
    saved_ratio = (before.dropped_ratio.value if before.dropped_ratio else 0.0) - price.dropped_ratio.value
    fresher_steps = before.p95_steps - price.p95_steps
    is_fresher = fresher_steps >= max(_FRESHER_STEPS, _FRESHER_RATIO * before.p95_steps)
    if saved_ratio <= -NOTABLE_RATIO or fresher_steps < 0.0:
        return False
    return is_fresher or saved_ratio >= _WASTED_RATIO


def _without_limits(system: System) -> System:
    """Remove everything that keeps samples from starting or drops them, except the running places and the queue."""
    return with_limits(system, **dict.fromkeys(_HOLDING_LIMITS), staleness_policy="admission")
