"""The systems that predictions are tried on: drawn once, with a seed, from ranges that real systems span.

Times are those of accelerators with tens of requests an engine; lengths and batches are some ten times shorter than
in production, which no rate depends on and which keeps a simulation under a second. What is drawn: the size of the
model (dense or a mixture of experts) and the shape of its curve, lengths and caps, prompts, groups, environments,
trainers that do not scale perfectly, update costs, limits, KV capacity, uneven engines and noise.
"""

from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.random import Generator
from token_simulator import Layout, Limits, Passes, Responses, Rollouts, Training, Updates, World
from token_simulator.pass_cost import decode_s

SYSTEMS: Final = 42
_SEED: Final = 20261121
_EXPERTS: Final = 128
_EXPERTS_PER_TOKEN: Final = 8
_FAMILIES: Final = ("queue", "drop", "publication_waits", "admission", "in_flight", "drop_oldest")


@dataclass(frozen=True, slots=True)
class System:
    """A world, where its run is recorded and for how long, and the layouts that are asked about."""

    family: str
    """What limits it, as in the names of `_limits`."""
    world: World
    recorded: Layout
    steps: int
    layouts: tuple[Layout, ...]
    """Every split of the GPUs, at the recorded limit of running requests and at twice that."""


def systems() -> list[System]:
    """All of them; the same list every time."""
    return [system_of(index, _SEED) for index in range(SYSTEMS)]


def system_of(index: int, seed: int) -> System:
    """One system drawn with a seed; the index chooses what limits it and is part of its name."""
    return _system(index, np.random.default_rng([seed, index]))


def quiet_twins(of: list[System]) -> list[System]:
    """The twins without noise of every other round through the families."""
    return [_without_noise(system) for index, system in enumerate(of) if index // len(_FAMILIES) % 2 == 0]


def _without_noise(system: System) -> System:
    """Passes and steps take their mean time, engines are alike; asked about at the recorded limit alone."""
    world = system.world
    passes = replace(world.passes, noise_sd=0.0, hiccup_ratio=0.0)
    training = replace(world.training, noise_sd=0.0)
    name = f"{world.name}_quiet"
    quiet = replace(world, name=name, passes=passes, training=training, engine_speed_sd=0.0)
    layouts = [layout for layout in system.layouts if layout.max_running == system.recorded.max_running]
    return replace(system, world=quiet, layouts=tuple(layouts))


def _system(index: int, random: Generator) -> System:
    family = _FAMILIES[index % len(_FAMILIES)]
    running = int(random.choice([16, 24, 32, 48]))
    gpus_per_engine = int(random.choice([1, 1, 2]))
    gpus = 8 * gpus_per_engine
    responses = _responses(random)
    mean_tokens, context_tokens = _means(responses)
    passes = _passes(random, running, context_tokens)
    rollouts = _rollouts(random, mean_tokens * decode_s(passes, running))
    tokens_per_s = running / decode_s(passes, running) / gpus_per_engine
    training = _training(random, gpus, tokens_per_s, (mean_tokens + responses.prompt_tokens) / mean_tokens)
    step_s = 2 * rollouts.samples_per_step * mean_tokens / (gpus * tokens_per_s)
    world = World(
        name=f"{index:02d}_{family}",
        gpus=gpus,
        passes=passes,
        responses=responses,
        rollouts=rollouts,
        training=replace(training, overhead_s=training.overhead_s * step_s, checkpoint_s=step_s),
        updates=_updates(random, step_s),
        limits=_limits(family, random, rollouts.samples_per_step),
        gpus_per_engine=gpus_per_engine,
        gpus_per_trainer_replica=gpus_per_engine,
        kv_capacity_tokens=_kv_capacity(random, running, context_tokens, responses),
        engine_speed_sd=float(random.choice([0.0, random.uniform(0.02, 0.08)])),
        most_passes_per_row=int(random.choice([1, 8])),
        model={"experts": _EXPERTS, "experts_per_token": _EXPERTS_PER_TOKEN} if passes.experts_s else None,
    )
    return System(family, world, *_asked(random, world, running))


def _asked(random: Generator, world: World, running: int) -> tuple[Layout, int, tuple[Layout, ...]]:
    pieces = world.gpus // world.gpus_per_engine
    splits = [(piece * world.gpus_per_engine, (pieces - piece) * world.gpus_per_engine) for piece in range(1, pieces)]
    recorded = Layout(*splits[int(random.integers(1, pieces - 2))], running)
    layouts = tuple(Layout(*split, limit) for split in splits for limit in (running, running * 2))
    return recorded, int(random.choice([40, 60, 100])), layouts


def _responses(random: Generator) -> Responses:
    median_tokens = random.uniform(80, 200)
    return Responses(
        median_tokens=median_tokens,
        sigma=random.uniform(0.4, 0.9),
        max_output_tokens=round(median_tokens * random.choice([3, 5, 8])),
        group_share_ratio=random.uniform(0.0, 0.5),
        long_ratio=float(random.choice([0.0, 0.1])),
        long_factor=random.uniform(2.5, 4.0),
        prompt_tokens=int(random.integers(20, 120)),
    )


def _means(responses: Responses) -> tuple[float, float]:
    """Mean response, and mean tokens that a running request holds: prompt and half of a length-biased response."""
    random = np.random.default_rng(0)
    drawn = responses.median_tokens * np.exp(responses.sigma * random.normal(size=20_000))
    drawn[random.random(20_000) < responses.long_ratio] *= responses.long_factor
    lengths = np.minimum(drawn, responses.max_output_tokens)
    mean_tokens = float(lengths.mean())
    return mean_tokens, responses.prompt_tokens + float((lengths**2).mean()) / (2 * mean_tokens)


def _passes(random: Generator, running: int, context_tokens: float) -> Passes:
    least_s = float(np.exp(random.uniform(np.log(0.003), np.log(0.02))))
    request_s = least_s / random.uniform(60, 300)
    is_mixture = random.random() < 0.2
    return Passes(
        weights_s=least_s * (0.4 if is_mixture else 1.0),
        request_s=request_s,
        sharpness=random.uniform(1.3, 4.0),
        experts_s=least_s * random.uniform(0.6, 2.0) if is_mixture else 0.0,
        expert_ratio=_EXPERTS_PER_TOKEN / _EXPERTS,
        kv_token_s=random.uniform(0.02, 0.4) * least_s / (running * context_tokens),
        padded_to=int(random.choice([1, 4, 8])),
        between_s=least_s * random.uniform(0.02, 0.1),
        prefill_tokens_per_s=random.uniform(0.8, 1.5) / request_s,
        mixes_prefill=bool(random.random() < 0.5),
        noise_sd=random.uniform(0.01, 0.08),
        hiccup_ratio=float(random.choice([0.0, 0.001])),
    )


def _rollouts(random: Generator, generation_s: float) -> Rollouts:
    waits = random.random() < 0.25
    return Rollouts(
        samples_per_step=int(random.choice([64, 96, 128])),
        group_size=int(random.choice([4, 8])),
        filtered_ratio=float(random.choice([0.0, 0.0, random.uniform(0.1, 0.3)])),
        environment_ratio=0.4 if waits else 0.0,
        environment_s=generation_s * random.uniform(0.5, 2.0) if waits else 0.0,
    )


def _training(random: Generator, gpus: int, sampled_per_gpu_s: float, all_over_response_tokens: float) -> Training:
    """Trainers that balance the samplers with a quarter to two thirds of the GPUs. overhead_s is in steps."""
    share = random.uniform(0.25, 0.65)
    return Training(
        tokens_per_gpu_s=sampled_per_gpu_s * (1 - share) / share * all_over_response_tokens,
        reference_gpus=gpus // 2,
        scaling_exponent=float(random.choice([1.0, 1.0, 0.9, 0.8])),
        overhead_s=random.uniform(0.01, 0.08),
        logprobs_ratio=float(random.choice([0.0, random.uniform(0.2, 0.35)])),
        noise_sd=random.uniform(0.01, 0.08),
        checkpoint_steps=int(random.choice([0, 0, 0, 10])),
    )


def _updates(random: Generator, step_s: float) -> Updates:
    return Updates(
        publish_s=step_s * random.uniform(0.01, 0.15),
        transfer_s=step_s * random.uniform(0.0, 0.1),
        apply_s=step_s * random.uniform(0.01, 0.08),
        kv_kept=bool(random.random() < 0.8),
    )


def _limits(family: str, random: Generator, samples_per_step: int) -> Limits:
    roomy = 4 * samples_per_step
    match family:
        case "drop":
            return Limits(roomy, max_staleness=int(random.integers(3, 9)), staleness_policy="drop")
        case "publication_waits":
            return Limits(roomy, max_staleness=int(random.integers(2, 5)), staleness_policy="publication_waits")
        case "admission":
            return Limits(roomy, max_staleness=int(random.integers(1, 4)), staleness_policy="admission")
        case "in_flight":
            return Limits(roomy, max_in_flight_samples=round(samples_per_step * random.uniform(1.5, 4.0)))
        case "drop_oldest":
            return Limits(int(samples_per_step * random.integers(1, 4)), full_queue="drop_oldest")
        case _:
            return Limits(roomy)


def _kv_capacity(random: Generator, running: int, context_tokens: float, responses: Responses) -> int | None:
    """None, or around what the recorded limit of running requests needs."""
    factor = random.uniform(0.8, 2.5)
    longest = responses.max_output_tokens + 2 * responses.prompt_tokens
    return None if random.random() < 0.5 else max(longest, round(factor * running * context_tokens))
