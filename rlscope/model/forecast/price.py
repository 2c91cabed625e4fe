"""Price of a layout or an action besides its work: staler samples, dropped tokens and shorter trained responses.

Dropping is not blind: the longest samples wait longest and are dropped first, so the trained lengths shift. The event
simulator sees this sample by sample; the closed forms know only how much a full queue drops, and roughly how old
samples get: enough to tell how both differ between draws. Intervals cover the posterior draws, the error of the
forecast and the sampling error of the simulation, in which lengths are drawn. The calibrated price of the current
layout is moved to its measurements, and every other price with it. Not covered: what stale or dropped samples cost in
learning.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Final

import numpy as np

from rlscope.document import LEFT_OUT
from rlscope.model.analytic.limits import Refused
from rlscope.model.analytic.steady_state import (
    STALE_QUANTILE,
    SteadyState,
    steady_states,
    steady_states_of_each,
    strict_cap,
    surplus_of,
)
from rlscope.model.arrays import Reals
from rlscope.model.estimate import Estimate, about
from rlscope.model.forecast.change import with_limits, with_trainer_speed
from rlscope.model.lengths import LengthLaw
from rlscope.model.numerics.bootstrap import drawn_factors
from rlscope.model.numerics.stratified import normals
from rlscope.model.observed import Observed
from rlscope.model.simulate import Simulated
from rlscope.model.system import Admission, Layout, System

DROPS_MUCH_RATIO: Final = 0.10
"""A change must not drop more than this share of the generated tokens: it would be a tenth of the samplers' work."""
LOSES_MUCH_RATIO: Final = 0.5
"""A change must not lose this share of the long responses that are trained now."""
GROWTH_VERSIONS: Final = 1.0
"""Difference between the mean staleness of both halves of a simulation from which it counts as growing."""
NOTABLE_RATIO: Final = 0.01
"""Smaller differences between two prices are not worth a word: two runs of the same settings differ by as much."""
_FORM_ERROR: Final = 0.07
"""Log error of the ratio of both sides' speeds, which decides what a full queue drops: that of a rate if a limit
binds."""
_SIMULATION_ERROR: Final = 0.03
"""Log error of the share that is kept where samples age out: that of a simulated rate with known parameters, since
speeds hardly change how many versions pass while a sample runs."""
_AGE_ERROR: Final = 0.15
"""Log error of the closed form's ages if every parameter is known."""
_STEPS: Final = 60
"""Steps for which a queue grows that does so in some draws only: those of a simulation."""
UNTESTED_LOG: Final = math.log(1.15)
"""Log of the error within which 90% of the predictions for other layouts are (benchmarks/prediction_error.txt): the
extra gain required if the run is too short to check the model."""
DRAWS: Final = 60
"""Draws of an interval: three lie beyond each end."""
_SEED: Final = 6


@dataclass(frozen=True, slots=True)
class StalenessForecast:
    """Forecast staleness of a layout, in versions."""

    token_mean: float
    sample_p95: int
    """p95 over samples, by their oldest token."""
    sample_max: int
    steps_per_version: float = 1.0
    """Mean number of steps that could have published per step that did. Above 1 if publications wait for the staleness
    cap, which then keeps samples fresh in versions, but not in optimizer steps."""
    horizon_steps: int | None = None
    """Steps that were simulated, if staleness still grows at their end: it is then that of a run as long. None: it is
    steady."""
    p95_interval_steps: tuple[float, float] | None = None
    """Ends of the 90% interval of `p95_steps`; None if it was measured."""

    @property
    def grows(self) -> bool:
        """Whether staleness still grows at the end of a simulation."""
        return self.horizon_steps is not None

    @property
    def p95_steps(self) -> float:
        """p95 in steps that could have published; layouts are compared on this."""
        return self.sample_p95 * self.steps_per_version

    def p95_in_optimizer_steps(self, steps_per_version: float) -> Estimate:
        """Return the p95 in optimizer steps. steps_per_version: optimizer steps from one publication to the next."""
        ends = self.p95_interval_steps or (self.p95_steps, self.p95_steps)
        return Estimate(self.p95_steps, *ends).mapped(lambda each: each * steps_per_version)


@dataclass(frozen=True, slots=True)
class Price:
    """Price of a layout or an action. None: the model cannot tell."""

    staleness: Annotated[StalenessForecast | None, LEFT_OUT] = None
    """None also if the queue grows without bound."""
    dropped_ratio: Estimate | None = None
    """Share of the generated response tokens, 0..1, that is dropped as stale or by a full queue."""
    mean_trained_tokens: Estimate | None = None
    """Response length, mean over trained samples."""
    longest_trained_ratio: Estimate | None = None
    """Share of the longest tenth of the samples that is trained rather than dropped, 0..1."""

    @property
    def p95_steps(self) -> float:
        """p95 staleness in steps that could have published; infinite if unknown or without bound."""
        return math.inf if self.staleness is None else self.staleness.p95_steps

    def exceeds_cap(self, most_staleness: int | None) -> bool:
        """Whether the p95 staleness over samples is unknown or above a cap, in versions; False without a cap."""
        return most_staleness is not None and (self.staleness is None or self.staleness.sample_p95 > most_staleness)

    @property
    def dropped_percent(self) -> float:
        """Dropped tokens in whole percent, to rank by; infinite if unknown. A smaller difference decides nothing."""
        return math.inf if self.dropped_ratio is None else float(round(100.0 * self.dropped_ratio.value))

    def without_intervals(self) -> "Price":
        """Return the price as a measured one, whose intervals have no width."""
        estimates = (self.dropped_ratio, self.mean_trained_tokens, self.longest_trained_ratio)
        return Price(self.staleness, *(each and Estimate.exactly(each.value) for each in estimates))

    def drops_much(self, before: "Price") -> bool:
        """Whether more than DROPS_MUCH_RATIO is dropped, and notably more than before."""
        now, then = before.dropped_ratio, self.dropped_ratio
        if then is None or then.value <= DROPS_MUCH_RATIO:
            return False
        return now is None or then.value - now.value >= NOTABLE_RATIO

    def loses_longest(self, before: "Price") -> bool:
        """Whether LOSES_MUCH_RATIO or more of the long samples that were trained before no longer are."""
        now, then = before.longest_trained_ratio, self.longest_trained_ratio
        if then is None:
            return False
        trained_before = now.value if now is not None else 1.0
        return trained_before - then.value >= max(LOSES_MUCH_RATIO * trained_before, NOTABLE_RATIO)

    def is_high(self, before: "Price") -> bool:
        """Whether it is too high to pay without a test."""
        return self.drops_much(before) or self.loses_longest(before)

    def changes_drops(self, before: "Price") -> bool:
        """Whether the dropped share differs notably from before, either way."""
        return _differs(before.dropped_ratio, self.dropped_ratio)

    def changes_longest(self, before: "Price") -> bool:
        """Whether the trained share of the longest tenth differs notably."""
        return _differs(before.longest_trained_ratio, self.longest_trained_ratio)

    def trained_length_ratio(self, before: "Price") -> Estimate | None:
        """Change of the mean trained length: after over before, minus 1."""
        now, then = before.mean_trained_tokens, self.mean_trained_tokens
        return then.mapped(lambda each: each / now.value - 1.0) if now and then and now.value else None


@dataclass(frozen=True, slots=True)
class Anchor:
    """Measured over modeled values of the current layout. All forecasts are moved by them."""

    rate_ratio: float = 1.0
    """Trained response tokens per second, measured over modeled."""
    modeled_dropped_ratio: float = 0.0
    """Modeled share of the generated tokens that is dropped."""
    dropped_difference: float = 0.0
    """Measured minus modeled share."""
    length_ratio: float = 1.0
    """Mean length of the trained samples, measured over modeled."""

    @classmethod
    def of(cls, observed: Observed, tokens_per_s: float | None, price: Price) -> "Anchor":
        """Compare a run with the rate and the price that the model gives for it."""
        delivered, samples = observed.delivered, int(observed.steps.samples.sum())
        left = delivered.trained_tokens + delivered.dropped_tokens + delivered.filtered_tokens
        measured_tokens = float(observed.steps.response_tokens.sum()) / samples if samples else 0.0
        dropped, tokens = price.dropped_ratio if left else None, price.mean_trained_tokens
        return cls(
            rate_ratio=observed.trained_tokens_per_s / tokens_per_s if tokens_per_s else 1.0,
            modeled_dropped_ratio=dropped.value if dropped else 0.0,
            dropped_difference=delivered.dropped_tokens / left - dropped.value if dropped else 0.0,
            length_ratio=measured_tokens / tokens.value if tokens and tokens.value and measured_tokens else 1.0,
        )

    def moved(self, price: Price) -> Price:
        """Move a price so that the price of the current layout equals its measurements."""
        dropped, tokens, longest = price.dropped_ratio, price.mean_trained_tokens, price.longest_trained_ratio
        moved = dropped and dropped.mapped(self._dropped_ratio)
        # If more is dropped, it is more of the same.
        more = moved.value / dropped.value if moved and dropped and dropped.value else 1.0
        return replace(
            price,
            dropped_ratio=moved,
            mean_trained_tokens=tokens and tokens.mapped(lambda each: self.length_ratio * each),
            longest_trained_ratio=longest and longest.mapped(lambda each: _share(1.0 - more * (1.0 - each))),
        )

    def _dropped_ratio(self, modeled: float) -> float:
        """Shift a share as that of the current layout has to be, less so if it is nearer to 0 or 1, and thus firmer.

        Near the current share, the odds are multiplied by a constant; own reasoning.
        """
        least = self.modeled_dropped_ratio * (1.0 - self.modeled_dropped_ratio)
        weight = modeled * (1.0 - modeled) / least if least else 1.0
        return _share(modeled + min(weight, 1.0) * self.dropped_difference)


def _differs(before: Estimate | None, after: Estimate | None) -> bool:
    return before is not None and after is not None and abs(after.value - before.value) >= NOTABLE_RATIO


def staleness_simulated(simulated: Simulated, admission: Admission) -> StalenessForecast:
    """Return the staleness of a simulated run; it grows only if no limit holds back or drops untrained samples."""
    ages, versions = simulated.staleness, simulated.published_versions
    between = simulated.steps / versions if versions else 1.0
    grows = surplus_of(admission) == "grows" and ages.growth >= GROWTH_VERSIONS
    horizon_steps = simulated.warm_up_steps + simulated.steps if grows else None
    p95, most = ages.samples.percentile(STALE_QUANTILE), ages.samples.max
    return StalenessForecast(ages.tokens.mean, p95, most, between, horizon_steps)


def expected_price(state: SteadyState, system: System, age_steps: float | None) -> Price:
    """Return what a layout may drop, and roughly how old its samples get: enough to tell whether to predict it.

    The closed forms know how much a full queue drops; which samples age out, only the simulator knows. Mean staleness
    is unknown: NaN. age_steps: p95 staleness if every step published; with publications that wait for the cap, a
    version lasts that age over the cap.
    """
    knows_drops = not (system.admission.drops_stale and state.dropped_ratio)
    dropped = Estimate.exactly(state.dropped_ratio) if knows_drops else None
    if state.sample_p95 is None:
        return Price(None, dropped)
    cap = strict_cap(system)
    p95 = _whole_versions(min(state.sample_p95, cap))
    return Price(StalenessForecast(math.nan, p95, p95, max(1.0, (age_steps or 0.0) / cap)), dropped)


def synchronous_price(lengths: LengthLaw) -> Price:
    """Price of a synchronous run: every token has the newest version, and nothing is dropped."""
    return Price(StalenessForecast(0.0, 0, 0), *map(Estimate.exactly, (0.0, lengths.mean_tokens, 1.0)))


def price_simulated(
    simulated: Simulated, staleness: StalenessForecast, system: System, draws: Sequence[System], layout: Layout
) -> Price:
    """Price of a simulation with the best estimate; staleness: `staleness_simulated`. draws: equally likely systems.

    The closed forms say how much is dropped and how old samples get in every draw, with the error of the ratio of both
    sides' speeds.
    """
    rng = np.random.default_rng([_SEED, layout.trainer_gpus, layout.sampler_gpus, layout.max_running])
    draws = draws[:DRAWS]
    speeds, errors = (normals(rng, len(draws)) for _ in range(2))
    uneven = [
        with_trainer_speed(draw, float(speed)) for draw, speed in zip(draws, np.exp(_FORM_ERROR * speeds), strict=True)
    ]
    asked = [system, *uneven]
    if surplus_of(system.admission) == "grows":
        # The share that a short queue would drop says by how much an unlimited one grows.
        queue = {"queue_capacity_samples": system.workload.samples_per_step, "queue_policy": "drop_oldest"}
        asked = [with_limits(each, **queue) for each in asked]
    states = steady_states_of_each(asked, layout)
    return Price(_aged(staleness, system, states, errors), *_shares(simulated, system, layout, states, errors))


def _shares(
    simulated: Simulated, system: System, layout: Layout, states: Sequence[SteadyState | Refused], errors: Reals
) -> tuple[Estimate, Estimate, Estimate]:
    """Return the dropped share, the mean trained length and the trained share of the longest tenth.

    The shares of lengths change in proportion to what is dropped (own reasoning: if more is dropped, it is more of the
    same). Where no rule drops samples, only the lengths vary, as they are drawn.
    """
    dropped, tokens, longest = simulated.dropped_ratio, simulated.mean_trained_tokens, simulated.longest_trained_ratio
    spread = _length_factors(simulated, errors.size)
    if surplus_of(system.admission) not in ("dropped", "aged"):
        return Estimate.exactly(dropped), about(tokens, tokens * spread), Estimate.exactly(longest)
    kept = (1.0 - dropped) * _kept_factors(system.admission, states, errors, simulated)
    drawn = 1.0 - np.clip(kept, 0.0, 1.0)
    more = drawn / dropped if dropped else np.ones_like(drawn)
    # If none is dropped by the best estimate, long samples are dropped as often as others in the draws that drop some.
    lost = (1.0 - longest) * more if dropped else drawn
    full_tokens, share = system.workload.lengths.mean_tokens, about(dropped, drawn)
    return (
        share if share.high else replace(share, high=_most_dropped_ratio(system, layout)),
        about(tokens, spread * (full_tokens - (full_tokens - tokens) * more)),
        about(longest, np.clip(1.0 - lost, 0.0, 1.0)),
    )


def _most_dropped_ratio(system: System, layout: Layout) -> float:
    """Return the share that is dropped if trainers are slower than predicted: the widest that 0 in every draw can be.

    90% of the predictions of other layouts are within that error, which the draws of one run do not all show.
    """
    state = steady_states(with_trainer_speed(system, math.exp(-UNTESTED_LOG)), (layout,))[0]
    return 0.0 if isinstance(state, Refused) else state.dropped_ratio


def _kept_factors(
    admission: Admission, states: Sequence[SteadyState | Refused], errors: Reals, simulated: Simulated
) -> Reals:
    """Share that is kept in every draw, with all errors, over that of the best estimate, which is the first state."""
    best, *drawn = states
    full = 1.0 if isinstance(best, Refused) else max(1.0 - best.dropped_ratio, np.finfo(np.float64).tiny)
    kept = np.array([full if isinstance(each, Refused) else 1.0 - each.dropped_ratio for each in drawn]) / full
    if not any(simulated.step_dropped_tokens):
        return kept
    if admission.drops_stale:
        kept *= np.exp(_SIMULATION_ERROR * errors)
    left = np.array(simulated.step_left_tokens)
    trained = left - np.array(simulated.step_dropped_tokens)
    # Once for the simulation, and once for the run whose level it is moved to.
    of_simulation, of_run = (drawn_factors(trained, left, seed, errors.size) for seed in (_SEED, _SEED + 1))
    return kept * of_simulation * of_run


def _length_factors(simulated: Simulated, draws: int) -> Reals:
    """Sampling error of the mean trained length: once for the simulation, and once for the run that it is moved to."""
    tokens = simulated.step_trained_tokens
    return np.prod([drawn_factors(tokens, np.ones(len(tokens)), seed, draws) for seed in (_SEED, _SEED + 1)], axis=0)


def _aged(
    staleness: StalenessForecast, system: System, states: Sequence[SteadyState | Refused], errors: Reals
) -> StalenessForecast:
    """Add the interval of the p95: every draw moves it by as much as it moves that of the closed forms.

    If nothing limits the queue and a draw's samplers are ahead, it grows with every step (own derivation): by their
    surplus, in batches. If only a strict cap limits an age, the closed forms know no other, and the cap errs likewise.
    If publications wait for the cap, versions last as long as needed: the error is in their steps.
    """
    grows, cap = surplus_of(system.admission) == "grows", strict_cap(system)
    waits = system.admission.staleness_policy == "publication_waits" and math.isfinite(cap)
    steps = staleness.horizon_steps or _STEPS

    def p95(state: SteadyState | Refused, error: float) -> float:
        if isinstance(state, Refused) or state.sample_p95 is None:
            return math.nan
        surplus = state.dropped_ratio / max(1.0 - state.dropped_ratio, np.finfo(np.float64).tiny) if grows else 0.0
        age = error * (state.sample_p95 if math.isfinite(state.sample_p95) else cap)
        return age if waits else _whole_versions(min(age, cap)) + STALE_QUANTILE * steps * surplus

    best, *drawn = (p95(*each) for each in zip(states, (1.0, *np.exp(_AGE_ERROR * errors)), strict=True))
    known, middle = np.array(drawn)[~np.isnan(drawn)], staleness.sample_p95
    if math.isnan(best) or not known.size:
        return staleness
    if waits and best:
        moved = about(staleness.p95_steps, staleness.p95_steps * known / best)
        return replace(staleness, p95_interval_steps=(moved.low, moved.high))
    moved = Estimate.of(np.maximum(middle + known - best, 0.0))
    low, high = min(math.floor(moved.low), middle), max(math.ceil(moved.high), middle)
    per_version = staleness.steps_per_version
    return replace(staleness, p95_interval_steps=(low * per_version, high * per_version))


def _whole_versions(age: float) -> int:
    """Return the smallest whole staleness, in versions, that is no less than an age."""
    return math.ceil(age - 1e-9)


def _share(value: float) -> float:
    return min(max(value, 0.0), 1.0)
