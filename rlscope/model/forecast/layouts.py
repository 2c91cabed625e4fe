"""Forecast the throughput and staleness of every possible layout, with their uncertainty.

The closed forms solve every layout once with the best estimate; the current layout and those that come near the best
are then solved with every draw. If the run is synchronous, its own layout is modeled as synchronous and every other
layout as asynchronous. Beyond the range that the run covered, a forecast is as wide as its draws, and its grade says
so. Preemptions are counted in the run, and simulated in other layouts. Not covered: effects that only the event
simulator sees (`simulated.py` corrects forecasts that have warnings), requests that wait because the cache is full,
blocks of a preempted request that a prefix cache still holds, and engines that swap to host memory.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

import numpy as np

from rlscope.model.analytic.limits import Refusal, Refused
from rlscope.model.analytic.staleness import oldest_token_law, percentile, token_mean
from rlscope.model.analytic.steady_state import (
    LimitCause,
    Regime,
    SteadyState,
    steady_states,
    steady_states_of_each,
    trained_rates,
)
from rlscope.model.analytic.synchronous import SynchronousStep, split_step
from rlscope.model.arrays import Reals
from rlscope.model.calibration import Calibration
from rlscope.model.causes import Cause
from rlscope.model.decode.measurements import Grade
from rlscope.model.estimate import Estimate
from rlscope.model.forecast.price import (
    STALE_QUANTILE,
    Anchor,
    Price,
    StalenessForecast,
    free_price,
    price_of,
    with_intervals,
)
from rlscope.model.numerics.bootstrap import drawn_factors
from rlscope.model.numerics.stratified import normals
from rlscope.model.observed import Observed, PreemptionCounts
from rlscope.model.simulate import Simulated
from rlscope.model.simulate.results import Ages
from rlscope.model.system import Engine, Layout, System, Workload

Exclusion = Refusal | Literal["too_stale", "trainer_memory"]
"""Reasons to exclude a layout. trainer_memory: too few trainer GPUs to hold weights, gradients and optimizer state."""

SECONDS_PER_HOUR: Final = 3600.0
_NEAR_BEST_RATIO: Final = 0.6
"""Layouts slower than this share of the best layout's best estimate are not drawn: no draw lifts them to the top."""
_FORM_ERROR: Final = 0.03
"""Log error of a forecast if every parameter is known: the error of the closed forms against a simulator of single
tokens, by `benchmarks/prediction_error.py`. Independent between layouts."""
_DOUBTFUL_FORM_ERROR: Final = 0.07
"""Log error if the closed form has a warning and the layout is simulated with the run's rollout scheduling. The
simulation errs by 0.03 if every parameter is known, and such layouts depend most on lengths and update costs, which no
draw varies. From twelve systems drawn with other seeds than the benchmark's."""
_SHARED_RATIO: Final = 0.5
"""Share of the variance of that error that all layouts of a run have in common, so that it cancels in a gain. Forecasts
are moved to the measured rate, so of two equal errors only one is left: half. Held against 32 systems drawn with seeds
that no benchmark uses."""
_SEED: Final = 2
_LEVEL_SEED: Final = 3
_MOST_DRAWN: Final = 60
"""Maximum number of layouts solved with every draw; the layouts ranked below differ by less than the draws do."""


@dataclass(frozen=True, slots=True)
class Preemption:
    """Frequency and cost of preemptions."""

    preemptions_per_sample: float
    """Mean preemptions per sample."""
    recompute_ratio: float | None
    """Share of the engines' time spent on recomputed tokens, 0..1, excluding a pass's fixed cost. None if prefill was
    not seen, if updates recompute tokens too, or if the number of recomputed tokens is unknown."""


@dataclass(frozen=True, slots=True)
class StepTiming:
    """Step timing of one layout, by the best estimate."""

    step_s: float
    """Seconds from one version to the next."""
    step_tokens: float
    """Response tokens trained per version; divided by the rate of any draw, this is that draw's period."""
    trainer_idle_ratio: float
    """Share of the trainers' time, 0..1, in which they do not work on a batch; publishing counts as idle."""
    sampler_idle_ratio: float
    """Share of the engines' time, 0..1, without a decode pass or a prefill."""
    staleness_mean: float | None
    """Mean over trained tokens, in versions; None if the queue grows without bound."""
    regime: Regime

    @property
    def tokens_per_s(self) -> float:
        """Trained response tokens per second."""
        return self.step_tokens / self.step_s


@dataclass(frozen=True, slots=True, eq=False)
class Forecast:
    """Forecast of one layout; if it cannot run at all, every field after `excluded` is None."""

    layout: Layout
    excluded: Exclusion | None
    state: SteadyState | None
    """Steady state by the best estimate."""
    tokens_per_s: float | None
    """Trained response tokens per second, by the best estimate."""
    drawn_tokens_per_s: Reals | None
    """Trained response tokens per second in every draw; None if the layout is excluded, or too slow to matter."""
    price: Price
    """Price of the layout; all unknown if it cannot run."""
    grade: Grade | None
    """Distance of its decode passes from those that the run visited."""
    timing: StepTiming | None = None
    """Timing by the best estimate, or by the event simulator if the layout was simulated."""
    preemption: Preemption | None = None
    """Preemptions by the event simulator; None if the layout was not simulated."""
    is_rough: bool = False
    """Whether the layout should have been simulated and was not. Far from the leaders, its rate is off by tens of
    percent: good enough to leave it behind them, and too far off to show."""
    in_flight_limit: int | None = None
    """Limit on samples in flight that the forecast rests on and the run lacks: without it the queue would grow."""

    @property
    def staleness(self) -> StalenessForecast | None:
        """Staleness of its price; None if the layout cannot run, or the queue grows without bound."""
        return self.price.staleness

    @classmethod
    def of_none(cls, layout: Layout, excluded: Exclusion | None) -> "Forecast":
        """Return the forecast of a layout that cannot run."""
        return cls(layout, excluded, None, None, None, Price(), None)

    @property
    def rank(self) -> tuple[bool, float]:
        """Key to sort by: the fastest first by the best estimate, excluded layouts last."""
        return (self.excluded is not None, -(self.tokens_per_s or 0.0))

    def gain_over(self, other: "Forecast | None") -> Estimate | None:
        """Rate over another layout's, minus 1, draw by draw; None if either was not drawn."""
        if other is None or self.drawn_tokens_per_s is None or other.drawn_tokens_per_s is None:
            return None
        return Estimate.of(self.drawn_tokens_per_s / other.drawn_tokens_per_s - 1.0)

    def step_seconds(self, tokens_per_s: float, steps_per_version: float) -> float | None:
        """Seconds of an optimizer step at a rate of trained response tokens; None if the layout cannot run."""
        if self.timing is None or not tokens_per_s:
            return None
        return self.timing.step_tokens / tokens_per_s / steps_per_version


@dataclass(frozen=True, slots=True, eq=False)
class Forecasts:
    """Forecasts of all considered layouts, the current one among them."""

    today: Forecast
    others: tuple[Forecast, ...]
    """Fastest first by the best estimate; excluded layouts last."""
    simulated_layouts: int = 0
    """Number of layouts whose forecast comes from the event simulator."""

    @property
    def shown(self) -> tuple[Forecast, ...]:
        """The current layout and the others whose figures can be shown."""
        return (self.today, *(each for each in self.others if not each.is_rough))

    @property
    def rivals(self) -> tuple[Forecast, ...]:
        """Other layouts that can run, keep the cap and come near the best."""
        return tuple(each for each in self.others if each.drawn_tokens_per_s is not None)


def forecast_layouts(
    calibration: Calibration, layouts: Sequence[Layout], most_staleness: int | None = None
) -> Forecasts:
    """Forecast every layout, and the current one whatever its staleness.

    most_staleness: maximum p95 staleness over samples, in versions, for a layout to be allowed.
    """
    candidates = [calibration.layout, *(layout for layout in layouts if layout != calibration.layout)]
    solved = steady_states(calibration.system, candidates)
    first = [forecast_of(calibration, state, most_staleness) for state in solved]
    today = replace(
        first[0], excluded=None, tokens_per_s=float(rates_of(calibration, calibration.system, candidates)[0])
    )
    if calibration.synchronous:
        # The closed form's state is that of an asynchronous run; in a synchronous run every token has the newest
        # version.
        today = _synchronous_today(calibration, today)
    chosen = _worth_drawing(first[1:], today.tokens_per_s or 0.0)
    drawn = _draw(calibration, [today, *chosen])
    others = [*drawn[1:], *(each for each in first[1:] if each not in chosen)]
    return Forecasts(drawn[0], _ranked(others))


def scale_to_measured(forecasts: Forecasts, anchor: Anchor, own: StalenessForecast | None = None) -> Forecasts:
    """Scale all rates, steps and prices by measured over modeled values.

    The measurement sets the level, the model the gains. own: measured staleness of the current layout; None keeps the
    modeled one.
    """
    today, *others = (_anchored(each, anchor) for each in (forecasts.today, *forecasts.others))
    price = replace(today.price, staleness=own or today.staleness)
    return replace(forecasts, today=replace(today, price=price), others=tuple(others))


def trainer_rate_bound(observed: Observed, draws: int, *, publishing: bool = True) -> Reals | None:
    """Factor on the trained rate, in each draw, if the trainers never had to wait.

    No engine, limit or queue makes the same trainers faster: the factor is the period of the steps over the part of it
    that is work (own derivation). publishing: whether publications still take trainer time. None if the steps do not
    record how long they trained. The same arguments give the same draws.
    """
    steps = observed.steps
    if not steps.trained.all():
        return None
    work_s = steps.train_s + steps.logprobs_s + steps.other_s + (steps.publish_s if publishing else 0.0)
    ratio = float(steps.period_s.sum() / work_s.sum())
    return np.maximum(1.0, ratio * drawn_factors(steps.period_s, work_s, _SEED, draws))


def cap_at_trainer_rate(forecasts: Forecasts, ceiling: Reals) -> Forecasts:
    """Cap the rates of layouts with as many trainer GPUs at the current rate times the ceiling, draw by draw."""
    today = forecasts.today
    if today.drawn_tokens_per_s is None or today.tokens_per_s is None:
        return forecasts
    most, drawn_most = today.tokens_per_s * float(np.median(ceiling)), today.drawn_tokens_per_s * ceiling

    def held(forecast: Forecast) -> Forecast:
        rate, drawn, timing = forecast.tokens_per_s, forecast.drawn_tokens_per_s, forecast.timing
        if forecast.layout.trainer_gpus != today.layout.trainer_gpus or rate is None:
            return forecast
        slower = max(1.0, rate / most)
        return replace(
            forecast,
            tokens_per_s=rate / slower,
            drawn_tokens_per_s=None if drawn is None else np.minimum(drawn, drawn_most),
            timing=None if timing is None else replace(timing, step_s=timing.step_s * slower),
        )

    return replace(forecasts, others=_ranked(map(held, forecasts.others)))


def measured_staleness(observed: Observed, steps_per_version: float = 1.0) -> StalenessForecast | None:
    """Staleness that was measured on the trained samples; None if no trained sample has a known version.

    steps_per_version: optimizer steps from one step that may publish to the next.
    """
    if not observed.staleness or not observed.oldest_staleness:
        return None
    tokens, samples = Ages(observed.staleness), Ages(observed.oldest_staleness)
    between = (observed.steps.per_version or steps_per_version) / steps_per_version
    return StalenessForecast(tokens.mean, samples.percentile(STALE_QUANTILE), samples.max, max(1.0, between))


def _anchored(forecast: Forecast, anchor: Anchor) -> Forecast:
    rate, drawn, timing = forecast.tokens_per_s, forecast.drawn_tokens_per_s, forecast.timing
    ratio = anchor.rate_ratio
    return replace(
        forecast,
        tokens_per_s=None if rate is None else rate * ratio,
        drawn_tokens_per_s=None if drawn is None else drawn * ratio,
        price=anchor.moved(forecast.price),
        timing=None if timing is None else replace(timing, step_s=timing.step_s / ratio),
    )


def _synchronous_today(calibration: Calibration, today: Forecast) -> Forecast:
    step = split_step(calibration.system, calibration.layout)
    timing = None if step is None else timing_of_step(step, calibration.layout)
    price = free_price(StalenessForecast(0.0, 0, 0), calibration.system.workload.lengths)
    return replace(today, state=None, price=price, timing=timing)


def forecast_of(calibration: Calibration, state: SteadyState | Refused, most_staleness: int | None) -> Forecast:
    """Forecast one steady state by the best estimate, without draws."""
    if isinstance(state, Refused):
        return Forecast.of_none(state.layout, state.reason)
    staleness = staleness_of(state, calibration.system.workload)
    too_stale = most_staleness is not None and (staleness is None or staleness.sample_p95 > most_staleness)
    return Forecast(
        layout=state.layout,
        excluded="too_stale" if too_stale else None,
        state=state,
        tokens_per_s=state.trained_tokens_per_s,
        drawn_tokens_per_s=None,
        price=price_of(state, staleness, calibration.system),
        grade=calibration.curve.grade(max(1.0, state.running), state.resident_tokens),
        timing=timing_of_state(state, calibration.system.workload),
    )


def staleness_of(state: SteadyState, workload: Workload) -> StalenessForecast | None:
    """Staleness in a steady state; None if its queue grows. No sample exceeds a strict cap."""
    terms, most = state.staleness, state.staleness_max
    if terms is None or most is None:
        return None
    oldest = oldest_token_law(workload.lengths, workload.unit_samples)
    return StalenessForecast(
        min(token_mean(terms, workload.lengths, workload.unit_samples), float(most)),
        min(percentile(terms, oldest, STALE_QUANTILE), most),
        most,
    )


def closed_price(calibration: Calibration, layout: Layout) -> Price:
    """Price of a layout by the closed forms, with its intervals; all unknown if it cannot run."""
    system, state = calibration.system, steady_states(calibration.system, (layout,))[0]
    if isinstance(state, Refused):
        return Price()
    price = price_of(state, staleness_of(state, system.workload), system)
    return with_intervals(price, system, calibration.draws, layout)


def _ranked(forecasts: Iterable[Forecast]) -> tuple[Forecast, ...]:
    return tuple(sorted(forecasts, key=lambda each: each.rank))


def _worth_drawing(forecasts: Sequence[Forecast], own_tokens_per_s: float) -> list[Forecast]:
    """Layouts that some draw may lift to the top, or that are faster than the current one.

    The latter are needed because the top may be too stale.
    """
    usable = [each for each in forecasts if each.excluded is None]
    ranked = _ranked(usable)[:_MOST_DRAWN]
    best = max((each.tokens_per_s or 0.0 for each in ranked), default=0.0)
    least = min(_NEAR_BEST_RATIO * best, own_tokens_per_s)
    return [each for each in ranked if (each.tokens_per_s or 0.0) >= least]


def _draw(calibration: Calibration, forecasts: Sequence[Forecast]) -> list[Forecast]:
    """Add a rate for every draw, 0 in a draw that refuses a layout, and the intervals of the price."""
    layouts = [each.layout for each in forecasts]
    rates = drawn_rates(calibration, layouts)
    system, draws = calibration.system, calibration.draws
    prices = [with_intervals(each.price, system, draws, each.layout) for each in forecasts]
    return [
        replace(each, drawn_tokens_per_s=column, price=price)
        for each, column, price in zip(forecasts, rates.T, prices, strict=True)
    ]


def drawn_rates(calibration: Calibration, layouts: Sequence[Layout]) -> Reals:
    """Trained response tokens per second, one row per draw and one column per layout; 0 if the layout cannot run.

    Each rate includes the error of the closed form, which layouts have partly in common and which is identical wherever
    a layout is solved, and one factor for everything that the run leaves open, which all layouts share.
    """
    rates = rates_of_each(calibration, calibration.draws, layouts)
    states = steady_states(calibration.system, layouts)
    errors = np.array([_form_error(state) for state in states])
    noise = errors * np.stack([_form_noise(each, len(rates)) for each in layouts], axis=1)
    return rates * np.exp(noise + _level_noise(calibration.level_log_sd, len(rates))[:, None])


def _level_noise(log_sd: float, draws: int) -> Reals:
    """Error shared by all layouts: it widens intervals without moving medians."""
    return log_sd * normals(np.random.default_rng(_LEVEL_SEED), draws)


def _form_noise(layout: Layout, draws: int) -> Reals:
    """Error of one layout. The layout is the seed, so its draws do not depend on the other layouts.

    The sum of the own and the shared part has their order, and the values of stratified draws.
    """
    seed = (_SEED, layout.trainer_gpus, layout.sampler_gpus, layout.max_running)
    own, shared = (normals(np.random.default_rng(each), draws) for each in (seed, _SEED))
    order = np.argsort(math.sqrt(1.0 - _SHARED_RATIO) * own + math.sqrt(_SHARED_RATIO) * shared)
    noise = np.empty(draws)
    noise[order] = np.sort(own)
    return noise


def _form_error(state: SteadyState | Refused) -> float:
    doubtful = not isinstance(state, Refused) and bool(state.warnings)
    return _DOUBTFUL_FORM_ERROR if doubtful else _FORM_ERROR


def rates_of(calibration: Calibration, system: System, layouts: Sequence[Layout]) -> Reals:
    """Trained response tokens per second in each layout; 0 if the layout cannot run."""
    return rates_of_each(calibration, (system,), layouts)[0]


def rates_of_each(calibration: Calibration, systems: Sequence[System], layouts: Sequence[Layout]) -> Reals:
    """Return `rates_of` for every system, one row each."""
    rates = trained_rates(systems, layouts)
    if calibration.synchronous and calibration.layout in layouts:
        steps = [split_step(system, calibration.layout) for system in systems]
        own = [step.trained_tokens_per_s if step else 0.0 for step in steps]
        rates[:, list(layouts).index(calibration.layout)] = own
    return rates


def timings(calibration: Calibration, systems: Sequence[System]) -> list[StepTiming | None]:
    """Return the timing of the run's own layout in every system; None if it cannot run."""
    if calibration.synchronous:
        steps = [split_step(system, calibration.layout) for system in systems]
        return [timing_of_step(step, calibration.layout) if step else None for step in steps]
    states = steady_states_of_each(systems, calibration.layout)
    return [
        None if isinstance(state, Refused) else timing_of_state(state, system.workload)
        for system, state in zip(systems, states, strict=True)
    ]


def timing_of_state(state: SteadyState, workload: Workload) -> StepTiming:
    """Return the timing by the closed forms."""
    terms = state.staleness
    return StepTiming(
        step_s=state.step_s,
        step_tokens=state.trained_tokens_per_s * state.step_s,
        trainer_idle_ratio=state.trainer_idle_ratio,
        sampler_idle_ratio=state.sampler_idle_ratio,
        staleness_mean=None if terms is None else token_mean(terms, workload.lengths, workload.unit_samples),
        regime=state.regime,
    )


def timing_of_simulated(simulated: Simulated, regime: Regime) -> StepTiming:
    """Return the timing by the event simulator, with the regime of the closed forms: the simulator finds none."""
    trainers, engines = simulated.trainer_seconds, simulated.engine_totals
    return StepTiming(
        step_s=simulated.step_s,
        step_tokens=simulated.trained_tokens_per_s * simulated.step_s,
        trainer_idle_ratio=simulated.trainer_idle_ratio + trainers.publish_s / simulated.seconds,
        sampler_idle_ratio=1.0 - (engines.decode_s + engines.prefill_s) / simulated.engine_s,
        staleness_mean=simulated.staleness.tokens.mean,
        regime=regime,
    )


def timing_of_step(step: SynchronousStep, layout: Layout) -> StepTiming:
    """Return the timing of a synchronous run, in which each side waits while the other works.

    Its regime is whatever costs the most GPU time: the trainers' waits for samples, the samplers' waits for the
    trainers, or the waits of both.
    """
    sampling_s, both = step.generation_s + step.prefill_s, layout.gpus
    waited_gpu_s: dict[LimitCause, float] = {
        Cause.SAMPLERS: layout.trainer_gpus * sampling_s,
        Cause.TRAINERS: layout.sampler_gpus * step.train_s,
        Cause.ENVIRONMENT: both * step.environment_s,
        Cause.WEIGHT_UPDATES: both * step.update_s,
    }
    return StepTiming(
        step_s=step.step_s,
        step_tokens=step.trained_tokens_per_s * step.step_s,
        trainer_idle_ratio=1.0 - step.train_s / step.step_s,
        sampler_idle_ratio=1.0 - sampling_s / step.step_s,
        staleness_mean=0.0,
        regime=max(waited_gpu_s, key=lambda cause: waited_gpu_s[cause]),
    )


def preemption_seen(observed: Observed, engine: Engine) -> Preemption | None:
    """Preemptions and their cost in the run; None if its engines do not count preemptions, or no sample began."""
    counts = observed.preemption_counts
    if counts is None or not observed.began_samples:
        return None
    ratio = _recompute_ratio(observed, counts, engine.prefill_tokens_per_s) if counts.preemptions else 0.0
    return Preemption(counts.preemptions / observed.began_samples, ratio)


def _recompute_ratio(observed: Observed, counts: PreemptionCounts, rate_per_s: float | None) -> float | None:
    """Preemptions whose recomputed tokens take as long as they did at first.

    Prompts then took the time given by the calibrated engine. Its rate is that of whole prompts, and not that of the
    computed tokens if a cache spares some of them.
    """
    recomputed_tokens, computed_tokens = counts.recomputed_tokens, float(observed.passes.prefill_tokens.sum())
    if not observed.kv_kept or not rate_per_s or recomputed_tokens is None or recomputed_tokens >= computed_tokens:
        return None
    prompts_s = observed.began_samples * observed.prompt_tokens / rate_per_s
    return prompts_s * recomputed_tokens / (computed_tokens - recomputed_tokens) / (observed.engines * observed.seconds)


def preemption_simulated(simulated: Simulated, system: System) -> Preemption | None:
    """Preemptions and their cost in a simulated layout, in steady state; None if it generated nothing."""
    totals = simulated.engine_totals
    if not totals.tokens:
        return None
    known = system.update.kv_kept and system.engine.prefill_tokens_per_s is not None
    samples = totals.tokens / system.workload.lengths.mean_tokens
    ratio = totals.recompute_s / simulated.engine_s if known else None
    return Preemption(totals.preemptions / samples, ratio if totals.preemptions else 0.0)
