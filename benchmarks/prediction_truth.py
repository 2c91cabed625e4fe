"""The truth of a token simulator's world in the terms of `rlscope/model`: what the model says when it knows everything.

The error that is left is that of the model's form; what a prediction from a trace errs beyond it, it errs in fitting.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
from prediction_systems import System as RecordedSystem
from token_simulator import Layout, Truth, World
from token_simulator.draws import groups, grow, slowness
from token_simulator.pass_cost import decode_s

from rlscope.model.analytic.steady_state import SteadyState, steady_states
from rlscope.model.arrays import Reals
from rlscope.model.forecast.recommend import FEW_VERSIONS, STALER_RATIO
from rlscope.model.lengths import LengthLaw
from rlscope.model.simulate import NeverTrains, Settings, simulate
from rlscope.model.system import Admission, Engine, System, Trainer, TrainerPhase, WeightUpdateCost, Workload
from rlscope.model.system import Layout as ModelLayout

_DRAWN_GROUPS = 4000
_STEPS = 60
_HICCUP_FACTOR = 10.0


@dataclass(frozen=True, slots=True)
class TrueCurve:
    """The mean decode pass of a world, time between passes included."""

    world: World

    @property
    def kv_s_per_token(self) -> float:
        return self.world.passes.kv_token_s * self._noise_factor

    @property
    def _noise_factor(self) -> float:
        return 1.0 + (_HICCUP_FACTOR - 1.0) * self.world.passes.hiccup_ratio

    def pass_s(self, running: Reals | float) -> Reals:
        """Between whole numbers of requests, a straight line."""
        asked = np.asarray(running, dtype=np.float64)
        below = np.floor(asked)
        costs = {count: decode_s(self.world.passes, int(count)) for count in np.unique([below, below + 1])}
        low = np.vectorize(costs.__getitem__, otypes=[np.float64])(below)
        high = np.vectorize(costs.__getitem__, otypes=[np.float64])(below + 1)
        mean_s: Reals = low + (asked - below) * (high - low)
        return mean_s * self._noise_factor + self.world.passes.between_s


def fresh_enough(system: RecordedSystem, true: Mapping[Layout, Truth]) -> list[Layout]:
    """The layouts that a change may recommend by their true staleness: all where a cap bounds it in optimizer steps."""
    limits = system.world.limits
    if limits.max_staleness is not None and limits.staleness_policy != "publication_waits":
        return list(true)
    most = max(STALER_RATIO * true[system.recorded].p95_steps, FEW_VERSIONS)
    return [layout for layout, each in true.items() if each.p95_steps <= most]


def true_system(world: World) -> System:
    """All that the world's layout does not change."""
    lengths, prompt_tokens = _lengths(world)
    rollouts = world.rollouts
    workload = Workload(
        lengths=lengths,
        prompt_tokens=prompt_tokens,
        group_size=rollouts.group_size,
        samples_per_step=rollouts.samples_per_step,
        trained_prompt_tokens=prompt_tokens,
        kept_ratio=1.0 - rollouts.filtered_ratio,
        environment_s=rollouts.environment_ratio * rollouts.environment_s,
        environment_kv_held=True,
    )
    engine = Engine(
        gpus=world.gpus_per_engine,
        curve=TrueCurve(world),
        max_running=10**6,
        kv_capacity_tokens=world.kv_capacity_tokens,
        prefill_tokens_per_s=world.passes.prefill_tokens_per_s,
        prefill_pass_s=_prefill_pass_s(world, prompt_tokens),
    )
    updates = world.updates
    update = WeightUpdateCost(
        engine_pause_s=updates.apply_s,
        trainer_blocked_s=updates.publish_s,
        delay_s=updates.publish_s + updates.transfer_s,
        kv_kept=updates.kv_kept,
    )
    return System(workload, engine, _trainer(world, lengths.mean_tokens + prompt_tokens), update, _admission(world))


def true_rates(world: World, layouts: Sequence[Layout]) -> dict[Layout, float]:
    """Trained response tokens per second by the closed form with the true parameters; NaN where it refuses."""
    asked = [ModelLayout(each.trainer_gpus, each.sampler_gpus, each.max_running) for each in layouts]
    states = steady_states(true_system(world), asked)
    rates = [state.trained_tokens_per_s if isinstance(state, SteadyState) else math.nan for state in states]
    return dict(zip(layouts, rates, strict=True))


def simulated_rate(world: World, layout: Layout) -> float:
    """The same by the model's event simulator; NaN where it never trains."""
    engines = layout.sampler_gpus // world.gpus_per_engine
    settings = Settings(
        queue_order="oldest_first",
        dispatch="pulled",
        engine_slowness=tuple(slowness(world, engine) for engine in range(engines)),
        step_noise=world.training.noise_sd,
    )
    asked = ModelLayout(layout.trainer_gpus, layout.sampler_gpus, layout.max_running)
    try:
        return simulate(true_system(world), asked, steps=_STEPS, seed=1, settings=settings).trained_tokens_per_s
    except NeverTrains:
        return math.nan


def _lengths(world: World) -> tuple[LengthLaw, float]:
    drawn = [request for group in islice(groups(world, 999), _DRAWN_GROUPS) for request in group.requests]
    for request in drawn:
        grow(world, request, 0)
    lengths = np.array([request.length_tokens for request in drawn])
    prompt_tokens = float(np.mean([request.prompt_tokens for request in drawn]))
    max_output_tokens = world.responses.max_output_tokens
    return LengthLaw.from_samples(lengths, np.ones(len(lengths), dtype=np.bool_), max_output_tokens), prompt_tokens


def _prefill_pass_s(world: World, prompt_tokens: float) -> float:
    """Seconds of a pass over a prompt besides those of its tokens; none if prompts ride on decode passes."""
    passes = world.passes
    if passes.mixes_prefill:
        return 0.0
    return max(passes.weights_s - prompt_tokens / passes.prefill_tokens_per_s, 0.0) + passes.between_s


def _trainer(world: World, sample_tokens: float) -> Trainer:
    training, samples = world.training, world.rollouts.samples_per_step
    compute_s = samples * sample_tokens / (training.tokens_per_gpu_s * training.reference_gpus)
    phases: list[TrainerPhase] = []
    if training.logprobs_ratio:
        phases.append(TrainerPhase("log-probabilities", training.logprobs_ratio * compute_s, shrinks_with_gpus=True))
    if training.checkpoint_steps:
        checkpoint_s = training.checkpoint_s / training.checkpoint_steps
        phases.append(TrainerPhase("checkpoints", checkpoint_s, False, training.checkpoint_steps))
    return Trainer(
        tokens_per_gpu_s=training.tokens_per_gpu_s,
        seen_gpus=training.reference_gpus,
        scaling_exponent=training.scaling_exponent,
        overhead_s=training.overhead_s,
        phases=tuple(phases),
    )


def _admission(world: World) -> Admission:
    limits = world.limits
    keeps_cap = limits.max_staleness is not None and limits.staleness_policy != "none"
    return Admission(
        queue_capacity_samples=limits.queue_capacity_samples,
        queue_policy=limits.full_queue,
        max_staleness=limits.max_staleness,
        max_in_flight_samples=limits.max_in_flight_samples,
        staleness_policy=limits.staleness_policy if keeps_cap else "admission",
    )
