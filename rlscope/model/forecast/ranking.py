"""Rank everything that would make the run faster: the gain of each action, and the cause that it addresses.

The cost of a cause is the gain from removing it alone, or from the best action against it if that is more. The verdict
(the largest cause) and the advice (the first action) therefore come from one ranking. Not covered: two actions
together, what they cost, and learning per token.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Final

import numpy as np

from rlscope.model.arrays import Reals
from rlscope.model.calibration import Calibration
from rlscope.model.causes import Cause, LossCause
from rlscope.model.estimate import Estimate
from rlscope.model.forecast.actions import DRAWS, SPEEDS, Action, ActionKind, ActionWhat, Counterfactuals
from rlscope.model.forecast.layouts import Forecast, Forecasts
from rlscope.model.forecast.predict import closed_rates
from rlscope.model.forecast.recommend import (
    SURE_RATIO,
    TIE_RATIO,
    WORTHWHILE_RATIO,
    Grounds,
    Recommendation,
)
from rlscope.model.forecast.smaller import cheaper_action
from rlscope.model.observed import Observed
from rlscope.model.system import Granularity, Layout

_CAPS: Final = frozenset({"staleness_cap", "in_flight_limit", "running_samples_limit"})
"""Limits that the removal of the cause `staleness_cap` lifts."""
_NO_WAIT_RATIO: Final = 0.01
"""Share of the trainers' time: if they wait less than this for samples, faster samplers only make samples fresher."""


@dataclass(frozen=True, slots=True, eq=False)
class CauseLoss:
    """Cost of one cause."""

    cause: LossCause
    gain_ratio: Estimate
    """Trained tokens per second over the current rate, minus 1, without the cause, or with the best action against it
    if more."""
    gains: Reals
    """Gain in every draw."""


@dataclass(frozen=True, slots=True, eq=False)
class Ranking:
    """Actions that gain something, and the causes that they address."""

    actions: tuple[Action, ...] = ()
    """Settings, then engineering work, then what makes samples much staler; in each group sure changes first, then by
    gain. All are worth WORTHWHILE_RATIO or more, but for the last settings: a lower limit that saves dropped tokens or
    staleness, and a smaller layout, which keep the rate."""
    losses: tuple[CauseLoss, ...] = ()
    """Largest first; ties with the largest go to the cause with the highest measured GPU time."""

    @property
    def first(self) -> Action | None:
        """First action to take; None if no action gains WORTHWHILE_RATIO, or keeps the rate and saves something."""
        return self.actions[0] if self.actions else None

    def reached(self, tokens_per_s: float) -> tuple[float, ...]:
        """Rates that settings alone would reach from the current rate, without work on code or machines."""
        return tuple(tokens_per_s * (1.0 + each.gain_ratio.value) for each in self.actions if each.kind != "fix")

    @property
    def cause(self) -> LossCause | None:
        """Cause that costs the most; None if no cause costs WORTHWHILE_RATIO: the run is balanced."""
        return self.losses[0].cause if self.losses and _is_worth_naming(self.losses[0]) else None

    @property
    def tied_with(self) -> tuple[LossCause, ...]:
        """Causes whose cost the model cannot distinguish from the largest."""
        return _tied(self.losses)[1:] if self.cause else ()


def _is_worth_naming(loss: CauseLoss) -> bool:
    return loss.gain_ratio.value >= WORTHWHILE_RATIO


def _tied(losses: Sequence[CauseLoss]) -> tuple[LossCause, ...]:
    """Causes of the largest loss and of losses that are barely smaller, or smaller in too few draws."""
    largest = max(losses, key=lambda each: each.gain_ratio.value)

    def is_tied(loss: CauseLoss) -> bool:
        behind = largest.gains - loss.gains
        return bool(np.median(behind) <= TIE_RATIO or (behind > 0.0).mean() < SURE_RATIO)

    return tuple(each.cause for each in losses if each is largest or (_is_worth_naming(each) and is_tied(each)))


def rank_actions(
    calibration: Calibration,
    observed: Observed,
    forecasts: Forecasts,
    recommendation: Recommendation,
    grounds: Grounds,
    granularity: Granularity,
) -> Ranking:
    """Rank everything that can be done about the run; empty if the model does not reproduce the run."""
    if not grounds.replayed:
        return Ranking()
    counterfactuals = Counterfactuals(calibration, observed, forecasts.today, grounds)
    layouts = tuple(layout_actions(calibration, forecasts, recommendation))
    removals = counterfactuals.removals()
    every = (*layouts, *counterfactuals.actions(removals))
    has_cap = calibration.system.admission.max_staleness is not None
    actions = [_against_the_cap(each, observed, grounds.lost_gpu_s, has_cap=has_cap) for each in every]
    removed, lower = _measured(removals, observed, grounds.lost_gpu_s), counterfactuals.fresher()
    others = [lower, counterfactuals.colocated(_slower_side(removed))]
    if calibration.synchronous and all(each.is_staler for each in layouts):
        others.insert(0, counterfactuals.overlapped())
    actions += [each for each in others if each is not None and each.kind != "fresher"]
    actions = [_tested_first(each, removed) for each in actions]
    cheaper = cheaper_action(calibration, observed, forecasts.today, grounds, granularity)
    keeping = [each for each in (lower, cheaper) if each is not None and each.kind in ("fresher", "cheaper")]
    return Ranking(_with_keeping(_listed(actions), keeping), _losses(removed, actions, grounds.lost_gpu_s))


def _slower_side(removed: Mapping[LossCause, Reals]) -> LossCause:
    """Return the side that costs more, by the gains without each cause."""
    sides: tuple[LossCause, ...] = (Cause.SAMPLERS, Cause.TRAINERS)
    return max(sides, key=lambda side: float(np.median(removed.get(side, np.zeros(1)))))


def _with_keeping(listed: tuple[Action, ...], keeping: Sequence[Action]) -> tuple[Action, ...]:
    """Put actions that keep the rate and save something else after the settings that the list begins with."""
    leading = list(takewhile(lambda each: not each.takes_engineering and not each.is_staler, listed))
    return (*leading, *keeping, *listed[len(leading) :])


def _tested_first(action: Action, removed: Mapping[LossCause, Reals]) -> Action:
    """Turn a change that is unsure, or whose price is too high to pay unseen, into a probe.

    Raising a limit gains at most what removing it does, draw by draw.
    """
    most = removed.get(Cause.STALENESS_CAP)
    if action.what in _CAPS and not action.lowers_limit and most is not None:
        action = replace(action, gains=np.minimum(action.gains, most))
    is_sure = action.worthwhile_probability >= SURE_RATIO and not action.price.is_high(action.price_before)
    return replace(action, kind="probe") if action.kind == "change" and not is_sure else action


def _against_the_cap(
    action: Action, observed: Observed, lost_gpu_s: Mapping[LossCause, float], *, has_cap: bool
) -> Action:
    """Attribute an action to the staleness cap if it helps only by making samples fresher.

    That is the case for faster samplers if the trainers wait for the cap and never for samples. It is also the case for
    rarer publications that gain more than all updates cost: a cap in versions then spans more steps (own reasoning).
    """
    if action.what == "publish_every" and has_cap:
        sampler_gpus = observed.engines * observed.gpus_per_engine
        all_gpu_s = (observed.trainer_gpus + sampler_gpus) * observed.seconds
        updates_ratio = lost_gpu_s.get(Cause.WEIGHT_UPDATES, 0.0) / all_gpu_s
        relaxes = action.gain_ratio.value * (1.0 - updates_ratio) > 2.0 * updates_ratio
        return replace(action, cause=Cause.STALENESS_CAP) if relaxes else action
    trainer_gpu_s, capped_gpu_s = observed.trainer_gpu_s, lost_gpu_s.get(Cause.STALENESS_CAP, 0.0)
    never_waits = lost_gpu_s.get(Cause.SAMPLERS, trainer_gpu_s) < _NO_WAIT_RATIO * trainer_gpu_s
    if action.cause != Cause.SAMPLERS or not never_waits or capped_gpu_s < _NO_WAIT_RATIO * trainer_gpu_s:
        return action
    return replace(action, cause=Cause.STALENESS_CAP)


def _measured(
    removed: Mapping[LossCause, Reals], observed: Observed, lost_gpu_s: Mapping[LossCause, float]
) -> Mapping[LossCause, Reals]:
    """Cap the gain of faster samplers by the measured waits for samples.

    They spare the trainers only those waits (own reasoning). Anything beyond that, such as waits for a limit, is
    charged to the limit.
    """
    held = dict(removed)
    waited_gpu_s, trainer_gpu_s = lost_gpu_s.get(Cause.SAMPLERS), observed.trainer_gpu_s
    if Cause.SAMPLERS in held and waited_gpu_s is not None and waited_gpu_s < trainer_gpu_s:
        most = waited_gpu_s / (trainer_gpu_s - waited_gpu_s)
        held[Cause.SAMPLERS] = np.minimum(held[Cause.SAMPLERS], most)
    return held


def _losses(
    removed: Mapping[LossCause, Reals], actions: Sequence[Action], lost_gpu_s: Mapping[LossCause, float]
) -> tuple[CauseLoss, ...]:
    """Cost of each cause: the gain of removing it, or of the best action against it, whichever is larger."""
    losses_by_cause = {cause: CauseLoss(cause, Estimate.of(gains), gains) for cause, gains in removed.items()}
    # Colocation removes no cause: it counts only if nothing else would name one.
    for action in sorted(actions, key=lambda each: each.what == "colocated"):
        known, by_now = losses_by_cause.get(action.cause), losses_by_cause.values()
        if action.what == "colocated" and any(map(_is_worth_naming, by_now)):
            continue
        if known is None or action.gain_ratio.value > known.gain_ratio.value:
            losses_by_cause[action.cause] = CauseLoss(action.cause, action.gain_ratio, action.gains[:DRAWS])
    losses = [each for each in losses_by_cause.values() if each.gain_ratio.value > 0.0]
    losses.sort(key=lambda each: -each.gain_ratio.value)
    # The measurements decide between causes that the model cannot tell apart.
    tied = _tied(losses) if losses else ()
    first = sorted((each for each in losses if each.cause in tied), key=lambda each: -lost_gpu_s.get(each.cause, 0.0))
    return (*first, *(each for each in losses if each.cause not in tied))


def _listed(actions: Sequence[Action]) -> tuple[Action, ...]:
    """Actions worth taking: settings, engineering work, much staler ones; in each, sure changes first, then by gain."""
    worth = [each for each in actions if each.gain_ratio.value >= WORTHWHILE_RATIO]
    settings = [each for each in worth if each.kind != "fix"]
    by_setting = {each.cause for each in settings}
    # Making a side faster takes work; it is not listed if a setting gains as much.
    worth = [each for each in worth if each.what not in SPEEDS or each.cause not in by_setting]
    # A synchronous run may have to stay on-policy, so an asynchronous split is no substitute.
    fresh = [each for each in settings if not each.is_staler and each.what != "asynchronous"]
    reached = max((each.gain_ratio.value for each in fresh), default=0.0)
    least = (1.0 + reached) * (1.0 + WORTHWHILE_RATIO) - 1.0
    worth = [each for each in worth if each.what != "colocated" or each.gain_ratio.value >= least]

    def rank(action: Action) -> tuple[bool, bool, bool]:
        return (action.is_staler, action.takes_engineering, action.kind != "change")

    def is_alike(action: Action, first: Action) -> bool:
        """Whether an action is the first one, or a setting of its rank that gains as much."""
        is_setting = action.kind != "fix" and first.kind != "fix"
        gains_as_much = first.gain_ratio.value - action.gain_ratio.value <= TIE_RATIO
        return action is first or (is_setting and gains_as_much and rank(action) == rank(first))

    left = sorted(worth, key=lambda each: (rank(each), -each.gain_ratio.value))
    ordered: list[Action] = []
    while left:
        # Ties go first to settings that cannot cost throughput, then to the one that drops least, then the freshest.
        alike = [each for each in left if is_alike(each, left[0])]
        ordered.append(min(alike, key=_harm))
        left.remove(ordered[-1])
    return tuple(ordered)


def _harm(action: Action) -> tuple[bool, float, float]:
    return (action.gain_ratio.low <= 0.0, action.price.dropped_percent, action.price.p95_steps * action.steps_ratio)


def layout_actions(calibration: Calibration, forecasts: Forecasts, recommendation: Recommendation) -> Iterator[Action]:
    """Yield the recommended layout, a fresher one that is nearly as fast, a staler one and one to try."""
    today, best = forecasts.today, recommendation.best
    chosen: tuple[tuple[Forecast | None, ActionKind, bool], ...] = (
        (best if recommendation.changes else None, "change", False),
        (best if recommendation.advice == "probe" else None, "probe", False),
        (recommendation.fresher, "change", False),
        (recommendation.staler, "change", True),
        (recommendation.untried, "probe", False),
    )
    for forecast, kind, is_staler in chosen:
        if forecast is None:
            continue
        yield Action(
            kind=kind,
            what=_what(calibration, forecast.layout),
            cause=_cause_of(calibration, forecast.layout),
            before=today.layout,
            after=forecast.layout,
            gains=forecast.gains_over(today),
            price_before=today.price,
            price=forecast.price,
            grade=forecast.grade,
            is_staler=is_staler,
            in_flight_limit=forecast.in_flight_limit,
        )


def _what(calibration: Calibration, layout: Layout) -> ActionWhat:
    if calibration.synchronous:
        return "asynchronous"
    return "running_limit" if layout.trainer_gpus == calibration.layout.trainer_gpus else "layout"


def _cause_of(calibration: Calibration, layout: Layout) -> LossCause:
    """Return the side that a layout makes faster: it gets GPUs, or its engines run more requests.

    If both sides get something, it is the one whose part of the change alone is faster, by the closed forms; if neither
    part alone gains WORTHWHILE_RATIO, it is the trainers, which get GPUs.
    """
    own = calibration.layout
    if calibration.synchronous:
        return Cause.LOCKSTEP
    if layout.trainer_gpus <= own.trainer_gpus:
        return Cause.SAMPLERS
    alone = replace(layout, max_running=own.max_running), replace(own, max_running=layout.max_running)
    split_rate, limit_rate, rate = closed_rates(calibration, (calibration.system,), (*alone, own))[0]
    least = max(split_rate, rate * (1.0 + WORTHWHILE_RATIO))
    return Cause.SAMPLERS if limit_rate > least else Cause.TRAINERS
