"""The forecast of a layout: its rate in every draw, its timing, its price and its preemptions.

`predict.py` computes forecasts. Here they are moved to the measurements of the run, and capped at trainers that never
wait. Preemptions are counted in the run, and simulated in other layouts. Not covered: requests that wait because the
cache is full, blocks of a preempted request that a prefix cache still holds, and engines that swap to host memory.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Final, Literal

import numpy as np

from rlscope.model.analytic.limits import Refusal
from rlscope.model.analytic.steady_state import STALE_QUANTILE, SteadyState
from rlscope.model.analytic.synchronous import SynchronousStep
from rlscope.model.arrays import Reals
from rlscope.model.decode.measurements import Grade
from rlscope.model.estimate import Estimate
from rlscope.model.forecast.price import Anchor, Price, StalenessForecast
from rlscope.model.numerics.bootstrap import drawn_factors
from rlscope.model.numerics.stratified import uniforms
from rlscope.model.observed import Observed, PreemptionCounts, TrainerSteps
from rlscope.model.simulate import Simulated
from rlscope.model.simulate.results import Ages
from rlscope.model.system import Engine, Layout, System

Exclusion = Refusal | Literal["too_stale", "trainer_memory", "never_trains"]
"""Reasons to exclude a layout. trainer_memory: too few trainer GPUs to hold weights, gradients and optimizer state.
never_trains: fewer than about one sample in a hundred is trained."""

SECONDS_PER_HOUR: Final = 3600.0
_SEED: Final = 2
_HARDLY_WAITS: Final = 1.05
"""Time of steps over the trainers' work in it, up to which the trainers set the rate."""


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

    def slowed(self, factor: float) -> "StepTiming":
        """Return the timing with steps that take longer by a factor, all of it idle time."""
        return replace(
            self,
            step_s=self.step_s * factor,
            trainer_idle_ratio=1.0 - (1.0 - self.trainer_idle_ratio) / factor,
            sampler_idle_ratio=1.0 - (1.0 - self.sampler_idle_ratio) / factor,
        )


@dataclass(frozen=True, slots=True, eq=False)
class Forecast:
    """Forecast of one layout; if it cannot run or is too slow to matter, every field after `excluded` is None."""

    layout: Layout
    excluded: Exclusion | None
    """Why it cannot be used; None if nothing excludes it."""
    state: SteadyState | None = None
    """Steady state by the best estimate."""
    tokens_per_s: float | None = None
    """Trained response tokens per second, by the best estimate."""
    drawn_tokens_per_s: Reals | None = field(default=None, repr=False)
    """Trained response tokens per second in every draw; None if the layout is excluded."""
    price: Price = Price()  # noqa: RUF009  # frozen
    """Price of the layout; all unknown if it cannot run."""
    grade: Grade | None = None
    """Distance of its decode passes from those that the run visited."""
    timing: StepTiming | None = None
    """Timing by the best estimate."""
    preemption: Preemption | None = None
    """Preemptions by the event simulator; None for the layout of a synchronous run, which is not simulated."""
    in_flight_limit: int | None = None
    """Limit on samples in flight that the forecast rests on and the run lacks: without it the queue would grow."""

    @property
    def staleness(self) -> StalenessForecast | None:
        """Staleness of its price; None if the layout cannot run, or the queue grows without bound."""
        return self.price.staleness

    def gain_over(self, other: "Forecast | None") -> Estimate | None:
        """Rate over another layout's, minus 1, draw by draw; None if either was not drawn."""
        if other is None or self.drawn_tokens_per_s is None or other.drawn_tokens_per_s is None:
            return None
        return Estimate.of(self.gains_over(other))

    def gains_over(self, other: "Forecast") -> Reals:
        """Rate over another layout's in every draw, minus 1. Raises ValueError if either was not drawn."""
        return self.drawn_rates / other.drawn_rates - 1.0

    @property
    def median_rate(self) -> float:
        """Trained response tokens per second, median over the draws. Raises ValueError if it was not drawn."""
        return float(np.median(self.drawn_rates))

    @property
    def drawn_rates(self) -> Reals:
        """`drawn_tokens_per_s`. Raises ValueError if the layout was not drawn."""
        if self.drawn_tokens_per_s is None:
            raise ValueError(f"{self.layout} was not drawn")
        return self.drawn_tokens_per_s

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
    """Fastest first by the best estimate; those too slow to matter, then excluded ones, last."""

    @property
    def shown(self) -> tuple[Forecast, ...]:
        """The current layout, the others that were predicted, and those that are excluded."""
        return (self.today, *(each for each in self.others if each.excluded or each.tokens_per_s is not None))

    @property
    def rivals(self) -> tuple[Forecast, ...]:
        """Other layouts that were predicted and keep the cap."""
        return tuple(each for each in self.others if each.drawn_tokens_per_s is not None)


def scale_to_measured(forecasts: Forecasts, anchor: Anchor, own: StalenessForecast | None = None) -> Forecasts:
    """Scale all rates, steps and prices by measured over modeled values.

    The measurement sets the level, the model the gains; the price of the current layout is then a measured one. own:
    measured staleness of the current layout; None keeps the modeled one.
    """
    today, *others = (anchored(each, anchor) for each in (forecasts.today, *forecasts.others))
    price = replace(today.price.without_intervals(), staleness=own or today.staleness)
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
    work_s = _work_s(steps) - (0.0 if publishing else steps.publish_s)
    ratio = float(steps.period_s.sum() / work_s.sum())
    return np.maximum(1.0, ratio * drawn_factors(steps.period_s, work_s, _SEED, draws))


def _work_s(steps: TrainerSteps) -> Reals:
    return steps.train_s + steps.logprobs_s + steps.other_s + steps.publish_s


def with_noise_of_work(gains: Reals, observed: Observed) -> Reals:
    """Add the sampling error of two runs as long as this one to a gain of one over the other.

    If trainers hardly wait, that is the variation of their work from step to step, which no simulation of mean steps
    shows. Otherwise it is that of their waits, which a simulation does show; the gains are then returned as given.
    """
    steps, work_s = observed.steps, _work_s(observed.steps)
    if not steps.trained.all() or steps.period_s.sum() > _HARDLY_WAITS * work_s.sum():
        return gains
    errors = [drawn_factors(steps.response_tokens, work_s, _SEED + run, gains.size) for run in (1, 2)]
    return (1.0 + gains) * errors[0] * errors[1] - 1.0


def below_ceiling(gains: Reals, ceiling: Reals | None, forecast: Forecast, today: Forecast) -> Reals:
    """Cap the gains of a forecast at those of trainers that never wait, draw by draw; ceiling None: not known.

    ceiling: factors on the current rate, as of `trainer_rate_bound`.
    """
    return gains if ceiling is None else np.minimum(gains, ceiling * _work_ratios(forecast, today, gains.size) - 1.0)


def _work_ratios(forecast: Forecast, today: Forecast, draws: int) -> Reals:
    """Tokens that the trainers train on per second of their work, over today's, in each draw.

    It differs if other samples are dropped: of longer ones, more tokens share what a step or a prompt costs. Which
    samples are dropped is the least certain part of a forecast, so that any part of the difference is equally likely.
    """

    def busy_rate(each: Forecast) -> float:
        idle_ratio = 0.0 if each.timing is None else each.timing.trainer_idle_ratio
        return (each.tokens_per_s or 0.0) / (1.0 - idle_ratio)

    return (busy_rate(forecast) / busy_rate(today)) ** uniforms(np.random.default_rng(_SEED), draws)


def cap_at_trainer_rate(forecasts: Forecasts, ceiling: Reals | None) -> Forecasts:
    """Cap the rates of layouts with as many trainer GPUs at the current rate times the ceiling, draw by draw.

    ceiling: as in `below_ceiling`.
    """
    today = forecasts.today
    if ceiling is None or today.drawn_tokens_per_s is None or today.tokens_per_s is None:
        return forecasts
    most, drawn_most = today.tokens_per_s * float(np.median(ceiling)), today.drawn_tokens_per_s * ceiling

    def capped(forecast: Forecast) -> Forecast:
        """Cap the rate of a layout, and lengthen its step as much; layouts with other trainers are left as they are."""
        rate, drawn, timing = forecast.tokens_per_s, forecast.drawn_tokens_per_s, forecast.timing
        if forecast.layout.trainer_gpus != today.layout.trainer_gpus or rate is None:
            return forecast
        work_ratios = _work_ratios(forecast, today, ceiling.size)
        slower = max(1.0, rate / (most * float(np.median(work_ratios))))
        return replace(
            forecast,
            tokens_per_s=rate / slower,
            drawn_tokens_per_s=None if drawn is None else np.minimum(drawn, drawn_most * work_ratios),
            timing=None if timing is None else replace(timing, step_s=timing.step_s * slower),
        )

    return replace(forecasts, others=ranked(map(capped, forecasts.others)))


def ranked(forecasts: Iterable[Forecast]) -> tuple[Forecast, ...]:
    """Return forecasts with the fastest first by the best estimate, and excluded ones last."""
    return tuple(sorted(forecasts, key=lambda each: (each.excluded is not None, -(each.tokens_per_s or 0.0))))


def measured_staleness(observed: Observed, steps_per_version: float = 1.0) -> StalenessForecast | None:
    """Staleness that was measured on the trained samples; None if no trained sample has a known version.

    steps_per_version: optimizer steps from one step that may publish to the next.
    """
    if not observed.staleness or not observed.oldest_staleness:
        return None
    tokens, samples = Ages(observed.staleness), Ages(observed.oldest_staleness)
    between = (observed.steps.per_version or steps_per_version) / steps_per_version
    return StalenessForecast(tokens.mean, samples.percentile(STALE_QUANTILE), samples.max, max(1.0, between))


def anchored(forecast: Forecast, anchor: Anchor) -> Forecast:
    """Scale the rate, step and price of one forecast by measured over modeled values."""
    rate, drawn, timing = forecast.tokens_per_s, forecast.drawn_tokens_per_s, forecast.timing
    ratio = anchor.rate_ratio
    return replace(
        forecast,
        tokens_per_s=None if rate is None else rate * ratio,
        drawn_tokens_per_s=None if drawn is None else drawn * ratio,
        price=anchor.moved(forecast.price),
        timing=None if timing is None else replace(timing, step_s=timing.step_s / ratio),
    )


def timing_of_simulated(simulated: Simulated) -> StepTiming:
    """Return the timing by the event simulator."""
    trainers, engines = simulated.trainer_seconds, simulated.engine_totals
    return StepTiming(
        step_s=simulated.step_s,
        step_tokens=simulated.trained_tokens_per_s * simulated.step_s,
        trainer_idle_ratio=simulated.trainer_idle_ratio + trainers.publish_s / simulated.seconds,
        sampler_idle_ratio=1.0 - (engines.decode_s + engines.prefill_s) / simulated.engine_s,
    )


def timing_of_step(step: SynchronousStep) -> StepTiming:
    """Return the timing of a synchronous run, in which each side waits while the other works."""
    return StepTiming(
        step_s=step.step_s,
        step_tokens=step.trained_tokens_per_s * step.step_s,
        trainer_idle_ratio=1.0 - step.train_s / step.step_s,
        sampler_idle_ratio=1.0 - (step.generation_s + step.prefill_s) / step.step_s,
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
    return prompts_s * recomputed_tokens / (computed_tokens - recomputed_tokens) / observed.engine_s


def preemption_simulated(simulated: Simulated, system: System) -> Preemption | None:
    """Preemptions and their cost in a simulated layout, in steady state; None if it generated nothing."""
    totals = simulated.engine_totals
    if not totals.tokens:
        return None
    known = system.update.kv_kept and system.engine.prefill_tokens_per_s is not None
    samples = totals.tokens / system.workload.lengths.mean_tokens
    ratio = totals.recompute_s / simulated.engine_s if known else None
    return Preemption(totals.preemptions / samples, ratio if totals.preemptions else 0.0)
