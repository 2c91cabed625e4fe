"""The chances of a world: lengths, noise and speeds, each from a random stream of its own.

Streams are apart so that a change of one cost leaves every other draw as it was.
"""

from collections.abc import Iterator

import numpy as np
from numpy.random import Generator

from .requests import Group, Request
from .world import Passes, Rollouts, World

_BLOCK = 4096
_HICCUP_FACTOR = 10.0


def stream(seed: int, name: str, index: int = 0) -> Generator:
    """The random stream of that name."""
    return np.random.default_rng([seed, index, *name.encode()])


def noise(random: Generator, sd: float, hiccup_ratio: float = 0.0) -> Iterator[float]:
    """Factors of mean 1 on a length of time, lognormal, and now and then a hiccup beyond that."""
    while True:
        factors = np.exp(random.normal(-sd * sd / 2, sd, _BLOCK))
        factors[random.random(_BLOCK) < hiccup_ratio] *= _HICCUP_FACTOR
        yield from factors.tolist()


def pass_noise(passes: Passes, seed: int, engine: int) -> Iterator[float]:
    """Factors on the passes of one engine."""
    return noise(stream(seed, "passes", engine), passes.noise_sd, passes.hiccup_ratio)


def slowness(world: World, engine: int) -> float:
    """How many times longer the passes of that engine take; the same at every layout and seed."""
    own = float(np.exp(stream(0, world.name, engine).normal(0.0, world.engine_speed_sd)))
    is_slow = engine % world.slow_engine_every == 0 if world.slow_engine_every else engine == 0
    return own * world.slow_engine_factor if is_slow else own


def groups(world: World, seed: int) -> Iterator[Group]:
    """What is started as one, for ever; version and times are not set, and lengths have not grown yet."""
    random = stream(seed, "responses")
    number = 0
    while True:
        for lengths, prompt_tokens, pauses in _block(world, random):
            units = len(lengths) // world.rollouts.unit_samples
            made = [Group(f"g{number}", admitted_version=0) for _ in range(units)]
            for member, (length, pause) in enumerate(zip(lengths, pauses, strict=True)):
                unit = made[member // world.rollouts.unit_samples]
                request = Request(unit, member, prompt_tokens, length, is_capped=False, submitted_s=0.0)
                request.pause_s = pause
                unit.requests.append(request)
            number += 1
            for unit in made:
                unit.unfinished = len(unit.requests)
            yield from made


def grow(world: World, request: Request, version: int) -> None:
    """Set the length that the request has under that version of the policy, and where it pauses."""
    max_output_tokens = world.responses.max_output_tokens
    factor = world.change.of(world.change.lengths, version)
    grown = round(request.length_tokens * factor * (1 + world.responses.growth_ratio) ** version)
    request.length_tokens = min(max(1, grown), max_output_tokens)
    request.is_capped = grown >= max_output_tokens
    if request.pause_s > 0 and request.length_tokens > 1:
        request.pause_after_tokens = (request.length_tokens + 1) // 2


def _block(world: World, random: Generator, count: int = 256) -> Iterator[tuple[list[int], int, list[float]]]:
    """Lengths before growth and cap, prompt and pauses of `count` groups."""
    responses, size = world.responses, world.rollouts.group_size
    shared = random.normal(size=(count, 1)) * responses.group_share_ratio**0.5
    own = random.normal(size=(count, size)) * (1 - responses.group_share_ratio) ** 0.5
    lengths = responses.median_tokens * np.exp(responses.sigma * (shared + own))
    lengths[random.random((count, size)) < responses.long_ratio] *= responses.long_factor
    prompts = random.integers(responses.prompt_tokens // 2, responses.prompt_tokens * 3 // 2 + 1, count)
    pauses = _pauses(world.rollouts, random, (count, size))
    rounded = np.maximum(1, np.rint(lengths)).astype(np.int64)
    yield from zip(rounded.tolist(), prompts.tolist(), pauses.tolist(), strict=True)


def _pauses(rollouts: Rollouts, random: Generator, shape: tuple[int, int]) -> np.ndarray:
    """Seconds that each sample waits for its environment; 0 for one that never does."""
    waits = random.random(shape) < rollouts.environment_ratio
    return np.where(waits, random.exponential(rollouts.environment_s, shape), 0.0)
