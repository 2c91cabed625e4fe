"""Forecasts: what each possible layout would achieve, and how sure that is.

Every layout is solved once by the closed forms with the best estimate; the run's own and those that come near the best
are then solved with every draw. A run that is synchronous today is modelled as such in its own layout, and as
asynchronous in every other. Beyond what the run covered a forecast is as wide as its draws, and its grade says so.
Preemptions are counted in the run, and simulated in other layouts. Not covered: what only the event simulator sees
(`simulated.py` corrects forecasts with warnings), requests that a full cache keeps waiting, blocks of a preempted
request that a prefix cache still holds, and engines that swap to the host's memory.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, NamedTuple

import numpy as np

from rlscope.model.analytic.limits import Refusal, Refused
from rlscope.model.analytic.staleness import oldest_token_law, percentile, token_mean
from rlscope.model.analytic.steady_state import (
    Regime,
    SteadyState,
    steady_states,
    steady_states_of_each,
    trained_rates_of_each,
)
from rlscope.model.analytic.synchronous import SynchronousStep, split_step
from rlscope.model.arrays import Reals
from rlscope.model.calibration import Calibration
from rlscope.model.decode.measurements import Grade
from rlscope.model.lengths import LengthLaw
from rlscope.model.numerics.bootstrap import drawn_factors
from rlscope.model.observed import Observed, PreemptionCounts
from rlscope.model.simulate import Simulated
from rlscope.model.simulate.results import Ages
from rlscope.model.system import Engine, Layout, System

Exclusion = Refusal | Literal["too_stale", "trainer_memory"]
"""Why a layout is excluded; trainer_memory: too few trainer GPUs to hold weights, gradients and optimizer."""

SECONDS_PER_HOUR: Final = 3600.0
INTERVAL_RATIO: Final = 0.90
"""Share of the draws inside every interval of this stage."""
STALE_QUANTILE: Final = 0.95
"""Of the samples by their oldest token: so many must keep a cap that drops nothing."""
_NEAR_BEST_RATIO: Final = 0.6
"""Layouts slower than this share of the best estimate's best are not drawn: no draw lifts them to the top."""
_FORM_ERROR: Final = 0.03
"""Log deviation of a forecast from the truth when every parameter is known: what `benchmarks/prediction_error.py` finds
of the closed forms against a simulator of single tokens. Not shared between layouts."""
_DOUBTFUL_FORM_ERROR: Final = 0.07
"""The same where the closed form has a warning and the layout is simulated with the run's rollout scheduling: that
errs by 0.03 with every parameter known, and such layouts are where lengths and update costs, which no draw varies,
matter most. Of twelve systems drawn with other seeds than the benchmark's."""
_SEED: Final = 2
_LEVEL_SEED: Final = 3
_MOST_DRAWN: Final = 60
"""Layouts solved with every draw; the next in rank differ by less than the draws do."""


class Spread(NamedTuple):
    """A quantity over the draws: its median, and the interval that holds 90% of them."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Reals) -> "Spread":
        """The spread of equally likely values."""
        outside = (1.0 - INTERVAL_RATIO) / 2.0
        low, median, high = np.quantile(values, [outside, 0.5, 1.0 - outside])
        return cls(float(median), float(low), float(high))


@dataclass(frozen=True, slots=True)
class StalenessForecast:
    """Staleness that a layout would have, in versions."""

    token_mean: float
    sample_p95: int
    """Of samples by their oldest token."""
    sample_max: int
    version_steps: float = 1.0
    """Steps that could have published, for each that did: above 1 where publications wait for the staleness cap, which
    then keeps samples fresh in versions, but not in optimizer steps."""

    @property
    def aged_p95(self) -> float:
        """The 95th percentile in steps that could have published: what layouts are compared by."""
        return self.sample_p95 * self.version_steps


@dataclass(frozen=True, slots=True)
class Preemption:
    """How often requests are preempted, and what that costs."""

    per_sample: float
    """Preemptions of a sample, mean."""
    engine_ratio: float | None
    """Share of the engines' time spent on recomputed tokens, 0..1, without what a pass costs besides its tokens; None
    where prefill was not seen, where updates recompute tokens too, or where it is unknown how many were recomputed."""


@dataclass(frozen=True, slots=True)
class StepTiming:
    """One layout, by the best estimate."""

    step_s: float
    """Period of the versions."""
    step_tokens: float
    """Response tokens trained in that time; over a rate of any draw, its period."""
    trainer_idle_ratio: float
    """Share of the trainers' time in which they do not work on a batch, 0..1: publishing counts as idle."""
    sampler_idle_ratio: float
    """Share of the engines' time without a decode pass or a prefill, 0..1."""
    regime: Regime


@dataclass(frozen=True, slots=True, eq=False)
class Forecast:
    """One layout; what follows `excluded` is None where it cannot run at all."""

    layout: Layout
    excluded: Exclusion | None
    state: SteadyState | None
    """By the best estimate."""
    tokens_per_s: float | None
    """Trained response tokens, by the best estimate."""
    drawn_tokens_per_s: Reals | None
    """The same for every draw; None where the layout is too slow to matter, or excluded."""
    staleness: StalenessForecast | None
    """None also where the queue grows for ever."""
    grade: Grade | None
    """How near its decode passes are to what the run visited."""
    pace: StepTiming | None = None
    """By the best estimate, or by the event simulator where the layout was simulated."""
    preemption: Preemption | None = None
    """By the event simulator; None where the layout was not simulated."""

    def step_seconds(self, tokens_per_s: float, steps_per_version: float) -> float | None:
        """Seconds of an optimizer step at a rate of trained response tokens; None where the layout cannot run."""
        return (
            None if self.pace is None or not tokens_per_s else self.pace.step_tokens / tokens_per_s / steps_per_version
        )


@dataclass(frozen=True, slots=True, eq=False)
class Forecasts:
    """All layouts considered; the run's own is one of them."""

    today: Forecast
    others: tuple[Forecast, ...]
    """By the best estimate, fastest first; excluded ones last."""

    @property
    def rivals(self) -> tuple[Forecast, ...]:
        """Other layouts that can run, keep the cap, and come near the best."""
        return tuple(each for each in self.others if each.drawn_tokens_per_s is not None)


@dataclass(frozen=True, slots=True)
class StalenessLaws:
    """What the staleness of every layout is read from; made once."""

    lengths: LengthLaw
    oldest: LengthLaw
    group_size: int

    @classmethod
    def of(cls, system: System) -> "StalenessLaws":
        """The laws of a system's lengths."""
        workload = system.workload
        oldest = oldest_token_law(workload.lengths, workload.unit_samples)
        return cls(workload.lengths, oldest, workload.unit_samples)


def forecast_layouts(
    calibration: Calibration, layouts: Sequence[Layout], most_staleness: int | None = None
) -> Forecasts:
    """Forecast every layout; most_staleness: versions that no layout's 95th percentile of samples may exceed.

    The run's own layout is forecast whatever its staleness.
    """
    candidates = [calibration.layout, *(layout for layout in layouts if layout != calibration.layout)]
    laws = StalenessLaws.of(calibration.system)
    solved = steady_states(calibration.system, candidates)
    first = [forecast_of(calibration, laws, state, most_staleness) for state in solved]
    today = replace(
        first[0], excluded=None, tokens_per_s=float(rates_of(calibration, calibration.system, candidates)[0])
    )
    if calibration.synchronous:
        # The closed form's state is that of an asynchronous run; in a synchronous one every token has its own version.
        today = _synchronous_today(calibration, today)
    chosen = _worth_drawing(first[1:], today.tokens_per_s or 0.0)
    drawn = _draw(calibration, [today, *chosen])
    others = [*drawn[1:], *(each for each in first[1:] if each not in chosen)]
    return Forecasts(drawn[0], tuple(sorted(others, key=_rank)))


def anchored_forecasts(forecasts: Forecasts, ratio: float, own: StalenessForecast | None = None) -> Forecasts:
    """Every rate times a ratio, every step so much shorter: what was measured sets the level, the model the gains.

    own: today's staleness, measured; None: the modelled one stays.
    """
    today, *others = (_anchored(each, ratio) for each in (forecasts.today, *forecasts.others))
    return Forecasts(replace(today, staleness=own or today.staleness), tuple(others))


def trainers_ceiling(observed: Observed, draws: int, *, publishing: bool = True) -> Reals | None:
    """The trained rate over today's, were the trainers never to wait: a factor for each draw, about what was measured.

    No engine, limit or queue makes the same trainers faster than that: the steps' period over the part of it that is
    work (own derivation). publishing: whether they publish as they do. None where the steps do not say how long they
    trained. The same arguments give the same draws.
    """
    steps = observed.steps
    if not steps.trained.all():
        return None
    work_s = steps.train_s + steps.logprobs_s + steps.other_s + (steps.publish_s if publishing else 0.0)
    ratio = float(steps.period_s.sum() / work_s.sum())
    return np.maximum(1.0, ratio * drawn_factors(steps.period_s, work_s, _SEED, draws))


def held_to_trainers(forecasts: Forecasts, ceiling: Reals) -> Forecasts:
    """The rates of layouts with as many trainer GPUs as today, each draw held to the ceiling over today's."""
    today = forecasts.today
    if today.drawn_tokens_per_s is None or today.tokens_per_s is None:
        return forecasts
    most, drawn_most = today.tokens_per_s * float(np.median(ceiling)), today.drawn_tokens_per_s * ceiling

    def held(forecast: Forecast) -> Forecast:
        rate, drawn, pace = forecast.tokens_per_s, forecast.drawn_tokens_per_s, forecast.pace
        if forecast.layout.trainer_gpus != today.layout.trainer_gpus or rate is None:
            return forecast
        slower = max(1.0, rate / most)
        return replace(
            forecast,
            tokens_per_s=rate / slower,
            drawn_tokens_per_s=None if drawn is None else np.minimum(drawn, drawn_most),
            pace=None if pace is None else replace(pace, step_s=pace.step_s * slower),
        )

    return Forecasts(today, tuple(sorted(map(held, forecasts.others), key=_rank)))


def measured_staleness(observed: Observed, steps_per_version: float = 1.0) -> StalenessForecast | None:
    """Staleness of what the stretch trained on; None where nothing with a known version was.

    steps_per_version: optimizer steps between two that may publish.
    """
    if not observed.staleness or not observed.oldest_staleness:
        return None
    tokens, samples = Ages(observed.staleness), Ages(observed.oldest_staleness)
    between = (observed.steps.per_version or steps_per_version) / steps_per_version
    return StalenessForecast(tokens.mean, samples.percentile(STALE_QUANTILE), samples.max, max(1.0, between))


def _anchored(forecast: Forecast, ratio: float) -> Forecast:
    rate, drawn, pace = forecast.tokens_per_s, forecast.drawn_tokens_per_s, forecast.pace
    return replace(
        forecast,
        tokens_per_s=None if rate is None else rate * ratio,
        drawn_tokens_per_s=None if drawn is None else drawn * ratio,
        pace=None if pace is None else replace(pace, step_s=pace.step_s / ratio),
    )


def _synchronous_today(calibration: Calibration, today: Forecast) -> Forecast:
    step = split_step(calibration.system, calibration.layout)
    pace = None if step is None else timing_of_step(step, calibration.layout)
    return replace(today, state=None, staleness=StalenessForecast(0.0, 0, 0), pace=pace)


def forecast_of(
    calibration: Calibration, laws: StalenessLaws, state: SteadyState | Refused, most_staleness: int | None
) -> Forecast:
    """The forecast of one steady state by the best estimate, without draws."""
    if isinstance(state, Refused):
        return Forecast(state.layout, state.reason, None, None, None, None, None)
    staleness = staleness_of(state, laws)
    too_stale = most_staleness is not None and (staleness is None or staleness.sample_p95 > most_staleness)
    return Forecast(
        layout=state.layout,
        excluded="too_stale" if too_stale else None,
        state=state,
        tokens_per_s=state.trained_tokens_per_s,
        drawn_tokens_per_s=None,
        staleness=staleness,
        grade=calibration.curve.grade(max(1.0, state.running), state.resident_tokens),
        pace=timing_of_state(state),
    )


def staleness_of(state: SteadyState, laws: StalenessLaws) -> StalenessForecast | None:
    """Staleness in a steady state; None where its queue grows. No sample exceeds a cap that is strict."""
    terms, most = state.staleness, state.staleness_max
    if terms is None or most is None:
        return None
    return StalenessForecast(
        min(token_mean(terms, laws.lengths, laws.group_size), float(most)),
        min(percentile(terms, laws.oldest, STALE_QUANTILE), most),
        most,
    )


def _worth_drawing(forecasts: Sequence[Forecast], own_tokens_per_s: float) -> list[Forecast]:
    """Those that some draw may lift to the top, and those that are faster than today's: the top may be too stale."""
    usable = [each for each in forecasts if each.excluded is None]
    ranked = sorted(usable, key=_rank)[:_MOST_DRAWN]
    best = max((each.tokens_per_s or 0.0 for each in ranked), default=0.0)
    least = min(_NEAR_BEST_RATIO * best, own_tokens_per_s)
    return [each for each in ranked if (each.tokens_per_s or 0.0) >= least]


def _rank(forecast: Forecast) -> tuple[bool, float]:
    return (forecast.excluded is not None, -(forecast.tokens_per_s or 0.0))


def _draw(calibration: Calibration, forecasts: Sequence[Forecast]) -> list[Forecast]:
    """The same forecasts with a rate for every draw; a draw that refuses a layout trains nothing with it."""
    layouts = [each.layout for each in forecasts]
    rates = drawn_rates(calibration, layouts)
    return [replace(each, drawn_tokens_per_s=column) for each, column in zip(forecasts, rates.T, strict=True)]


def drawn_rates(calibration: Calibration, layouts: Sequence[Layout]) -> Reals:
    """Trained response tokens per second, one row per draw and one column per layout; 0 where it cannot run.

    Each rate includes the error of the form itself: the same for a layout wherever it is solved, independent between
    layouts; and one factor common to all that the run leaves open.
    """
    rates = rates_of_each(calibration, calibration.draws, layouts)
    states = steady_states(calibration.system, layouts)
    errors = np.array([_form_error(state) for state in states])
    noise = errors * np.stack([_form_noise(each, len(rates)) for each in layouts], axis=1)
    return rates * np.exp(noise + _level_noise(calibration.level_log_sd, len(rates))[:, None])


def _level_noise(log_sd: float, draws: int) -> Reals:
    """The same for every layout; about its own median, so that it widens intervals and moves no middle."""
    drawn = np.random.default_rng(_LEVEL_SEED).standard_normal(draws)
    return log_sd * (drawn - np.median(drawn))


def _form_noise(layout: Layout, draws: int) -> Reals:
    """The layout is the seed, so its draws do not depend on the other layouts."""
    seed = (_SEED, layout.trainer_gpus, layout.sampler_gpus, layout.running_per_engine)
    return np.random.default_rng(seed).standard_normal(draws)


def _form_error(state: SteadyState | Refused) -> float:
    doubtful = not isinstance(state, Refused) and bool(state.warnings)
    return _DOUBTFUL_FORM_ERROR if doubtful else _FORM_ERROR


def rates_of(calibration: Calibration, system: System, layouts: Sequence[Layout]) -> Reals:
    """Trained response tokens per second in each layout; 0 where it cannot run."""
    return rates_of_each(calibration, (system,), layouts)[0]


def rates_of_each(calibration: Calibration, systems: Sequence[System], layouts: Sequence[Layout]) -> Reals:
    """`rates_of` of every system, one row each."""
    rates = trained_rates_of_each(systems, layouts)
    if calibration.synchronous and calibration.layout in layouts:
        steps = [split_step(system, calibration.layout) for system in systems]
        own = [step.trained_tokens_per_s if step else 0.0 for step in steps]
        rates[:, list(layouts).index(calibration.layout)] = own
    return rates


@dataclass(frozen=True, slots=True)
class OperatingPoint:
    """What a run settles at."""

    tokens_per_s: float
    """Trained response tokens."""
    step_s: float
    """Period of the versions."""
    trainer_idle_ratio: float
    """Share of the trainers' time without work on a batch, 0..1."""
    staleness_mean: float | None
    """Of trained tokens, versions; None where the queue grows for ever."""


def operating_point(calibration: Calibration, system: System) -> OperatingPoint | None:
    """Where the run's own layout settles; None where the model says that it cannot run."""
    return operating_points(calibration, (system,))[0]


def operating_points(calibration: Calibration, systems: Sequence[System]) -> list[OperatingPoint | None]:
    """The same of every system."""
    if calibration.synchronous:
        steps = [split_step(system, calibration.layout) for system in systems]
        return [_of_step(step) if step else None for step in steps]
    states = steady_states_of_each(systems, calibration.layout)
    return [
        None if isinstance(state, Refused) else _of_state(system, state)
        for system, state in zip(systems, states, strict=True)
    ]


def _of_step(step: SynchronousStep) -> OperatingPoint:
    return OperatingPoint(
        tokens_per_s=step.trained_tokens_per_s,
        step_s=step.step_s,
        trainer_idle_ratio=1.0 - step.train_s / step.step_s,
        staleness_mean=0.0,
    )


def _of_state(system: System, state: SteadyState) -> OperatingPoint:
    workload, terms = system.workload, state.staleness
    return OperatingPoint(
        tokens_per_s=state.trained_tokens_per_s,
        step_s=state.step_s,
        trainer_idle_ratio=state.trainer_idle_ratio,
        staleness_mean=None if terms is None else token_mean(terms, workload.lengths, workload.unit_samples),
    )


def timing_of_state(state: SteadyState) -> StepTiming:
    """By the closed forms."""
    step_tokens = state.trained_tokens_per_s * state.step_s
    return StepTiming(state.step_s, step_tokens, state.trainer_idle_ratio, state.sampler_idle_ratio, state.regime)


def timing_of_simulated(simulated: Simulated, regime: Regime) -> StepTiming:
    """By the event simulator, which finds no regime: that of the closed forms is kept."""
    trainers, engines = simulated.trainer_seconds, simulated.engine_seconds
    return StepTiming(
        step_s=simulated.step_s,
        step_tokens=simulated.trained_tokens_per_s * simulated.step_s,
        trainer_idle_ratio=simulated.trainer_idle_ratio + trainers.publish_s / simulated.seconds,
        sampler_idle_ratio=1.0 - (engines.decode_s + engines.prefill_s) / engines.total_s,
        regime=regime,
    )


def timing_of_step(step: SynchronousStep, layout: Layout) -> StepTiming:
    """Of a synchronous run, in which each side waits while the other works.

    Its regime is what costs the most GPU time: the trainers' waits for samples, the samplers' waits for the trainers,
    or what both wait for.
    """
    sampling_s, both = step.generation_s + step.prefill_s, layout.trainer_gpus + layout.sampler_gpus
    waited_gpu_s: dict[Regime, float] = {
        "samplers": layout.trainer_gpus * sampling_s,
        "trainers": layout.sampler_gpus * step.train_s,
        "environment": both * step.environment_s,
        "weight_updates": both * step.update_s,
    }
    return StepTiming(
        step_s=step.step_s,
        step_tokens=step.trained_tokens_per_s * step.step_s,
        trainer_idle_ratio=1.0 - step.train_s / step.step_s,
        sampler_idle_ratio=1.0 - sampling_s / step.step_s,
        regime=max(waited_gpu_s, key=lambda cause: waited_gpu_s[cause]),
    )


def preemption_seen(observed: Observed, engine: Engine) -> Preemption | None:
    """What the run lost; None where its engines do not count preemptions, or no sample began."""
    counts = observed.preemption_counts
    if counts is None or not observed.began_samples:
        return None
    ratio = _recompute_ratio(observed, counts, engine.prefill_tokens_per_s) if counts.preemptions else 0.0
    return Preemption(counts.preemptions / observed.began_samples, ratio)


def _recompute_ratio(observed: Observed, counts: PreemptionCounts, rate_per_s: float | None) -> float | None:
    """Tokens take as long as when they were computed first: then the prompts took what the calibrated engine says,
    whose rate is that of whole prompts, and so not that of the tokens computed where a cache spares a part of them.
    """
    recomputed_tokens, computed_tokens = counts.recomputed_tokens, float(observed.passes.prefill_tokens.sum())
    if not observed.kv_kept or not rate_per_s or recomputed_tokens is None or recomputed_tokens >= computed_tokens:
        return None
    prompts_s = observed.began_samples * observed.prompt_tokens / rate_per_s
    return prompts_s * recomputed_tokens / (computed_tokens - recomputed_tokens) / (observed.engines * observed.seconds)


def preemption_simulated(simulated: Simulated, system: System) -> Preemption | None:
    """What a simulated layout loses, in steady state; None where it generated nothing in what was measured."""
    if not simulated.generated_tokens:
        return None
    seconds, engine = simulated.engine_seconds, system.engine
    known = system.update.kv_kept and engine.prefill_tokens_per_s is not None
    samples = simulated.generated_tokens / system.workload.lengths.mean_tokens
    ratio = seconds.recompute_s / seconds.total_s if known else None
    return Preemption(simulated.preemptions / samples, ratio if simulated.preemptions else 0.0)
