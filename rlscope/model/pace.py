"""How fast a layout goes round and which side of it waits: the same four figures whichever way they were found.

From the closed forms, from a synchronous step, or from a simulation. Not covered: how they vary over the draws.
"""

from dataclasses import dataclass

from rlscope.model.asynchronous import SteadyState
from rlscope.model.losses import Regime
from rlscope.model.simulate import Simulated
from rlscope.model.synchronous import SynchronousStep
from rlscope.model.system import Layout


@dataclass(frozen=True, slots=True)
class Pace:
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


def pace_of_state(state: SteadyState) -> Pace:
    """By the closed forms."""
    step_tokens = state.trained_tokens_per_s * state.step_s
    return Pace(state.step_s, step_tokens, state.trainer_idle_ratio, state.sampler_idle_ratio, state.regime)


def pace_of_simulated(simulated: Simulated, regime: Regime) -> Pace:
    """By the event simulator, which finds no regime: that of the closed forms is kept."""
    trainers, engines = simulated.trainer_seconds, simulated.engine_seconds
    return Pace(
        step_s=simulated.step_s,
        step_tokens=simulated.trained_tokens_per_s * simulated.step_s,
        trainer_idle_ratio=simulated.trainer_idle_ratio + trainers.publish_s / simulated.seconds,
        sampler_idle_ratio=1.0 - (engines.decode_s + engines.prefill_s) / engines.total_s,
        regime=regime,
    )


def pace_of_step(step: SynchronousStep, layout: Layout) -> Pace:
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
    return Pace(
        step_s=step.step_s,
        step_tokens=step.trained_tokens_per_s * step.step_s,
        trainer_idle_ratio=1.0 - step.train_s / step.step_s,
        sampler_idle_ratio=1.0 - sampling_s / step.step_s,
        regime=max(waited_gpu_s, key=lambda cause: waited_gpu_s[cause]),
    )
