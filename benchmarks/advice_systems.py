"""The systems that the advice is judged on: drawn with other seeds than those of `prediction_systems.py`, and wider.

Each kind changes one thing about how rollouts are scheduled or what they meet: groups delivered whole or sample by
sample, limits in flight that count the batch in training or not, the order of the queue, how a cap is kept, slow
engines, noise, trainers that scale badly, short and long responses.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from prediction_systems import System, system_of
from token_simulator import Evaluations, Layout, Limits, Responses, World

_SEED: Final = 20261122
_QUEUE: Final = 0
"""Index of a family without a limit but a roomy queue."""
_STEPS: Final = 60

Change = Callable[[World], World]


def _limits(world: World, **changes: object) -> World:
    return replace(world, limits=replace(world.limits, **changes))  # type: ignore[arg-type]


def _one_by_one(world: World) -> World:
    return replace(world, rollouts=replace(world.rollouts, delivery="sample", filtered_ratio=0.0))


def _in_flight(world: World, steps: float) -> int:
    return round(world.rollouts.samples_per_step * steps)


def _responses(world: World, factor: float, sigma: float, long_ratio: float) -> World:
    given = world.responses
    made = Responses(
        median_tokens=given.median_tokens * factor,
        sigma=sigma,
        max_output_tokens=round(given.max_output_tokens * factor * 2),
        group_share_ratio=given.group_share_ratio,
        long_ratio=long_ratio,
        long_factor=5.0,
        prompt_tokens=given.prompt_tokens,
    )
    return replace(world, responses=made, kv_capacity_tokens=None)


def _doubling(world: World) -> World:
    """Responses are twice as long at the end of the recording as at its start."""
    return replace(world, responses=replace(world.responses, growth_ratio=2.0 ** (1.0 / _STEPS) - 1.0))


def _trained(world: World, **changes: object) -> World:
    return replace(world, training=replace(world.training, **changes))  # type: ignore[arg-type]


def _in_parts(world: World) -> World:
    """Trained on in eighths of a batch, as they come."""
    return _trained(world, micro_batch_samples=world.rollouts.samples_per_step // 8, logprobs_ratio=0.0)


def _step_s(world: World) -> float:
    """About as long as a step takes at the best split."""
    return world.training.checkpoint_s


def _batch(world: World) -> int:
    return world.rollouts.samples_per_step


KINDS: Final[Mapping[str, Change]] = {
    "whole groups, roomy queue": lambda world: world,
    "one by one": _one_by_one,
    "one by one, limit in flight": lambda world: _limits(
        _one_by_one(world), max_in_flight_samples=_in_flight(world, 2.5)
    ),
    "one by one, limit counts training": lambda world: _limits(
        _one_by_one(world), max_in_flight_samples=_in_flight(world, 3.0), in_flight_until_trained=True
    ),
    "in flight counts training": lambda world: _limits(
        world, max_in_flight_samples=_in_flight(world, 3.0), in_flight_until_trained=True
    ),
    "first in, first out": lambda world: _limits(world, queue_order="fifo"),
    "last in, first out": lambda world: _limits(world, queue_order="lifo"),
    "drops stale, limit in flight": lambda world: _limits(
        world, max_staleness=3, staleness_policy="drop", max_in_flight_samples=_in_flight(world, 3.0)
    ),
    "admits by age": lambda world: _limits(world, max_staleness=2, staleness_policy="admission"),
    "publications wait, limit in flight": lambda world: _limits(
        world, max_staleness=3, staleness_policy="publication_waits", max_in_flight_samples=_in_flight(world, 3.0)
    ),
    "short queue": lambda world: _limits(world, queue_capacity_samples=_batch(world)),
    "queue that loses its oldest": lambda world: replace(world, limits=Limits(_batch(world), full_queue="drop_oldest")),
    "one slow engine": lambda world: replace(world, slow_engine_factor=1.6),
    "noise of 5%": lambda world: replace(
        world, passes=replace(world.passes, noise_sd=0.05), training=replace(world.training, noise_sd=0.05)
    ),
    "trainers scale badly": lambda world: replace(world, training=replace(world.training, scaling_exponent=0.75)),
    "short responses": lambda world: _responses(world, 0.4, 0.5, 0.0),
    "long tail": lambda world: _responses(world, 1.0, 1.0, 0.08),
    "scheduling not stated": lambda world: replace(_one_by_one(world), states_scheduling=False),
    "three steps a version": lambda world: _trained(world, steps_per_version=3),
    "four steps a version, tight limit": lambda world: _limits(
        _trained(world, steps_per_version=4), max_in_flight_samples=_in_flight(world, 2.0)
    ),
    "four steps a version, a version in flight": lambda world: _limits(
        _trained(world, steps_per_version=4), max_in_flight_samples=_in_flight(world, 4.5)
    ),
    "four steps a version, one batch": lambda world: _limits(
        _trained(world, steps_per_version=4, shares_batch=True), max_in_flight_samples=_in_flight(world, 7.0)
    ),
    "engines evaluate": lambda world: replace(world, evaluations=Evaluations(4, 4.0 * _step_s(world))),
    "engines evaluate in recorded passes": lambda world: replace(
        world, evaluations=Evaluations(5, 8.0 * _step_s(world), requests=8)
    ),
    "engines save and do other things": lambda world: replace(
        world, evaluations=Evaluations(2, 0.4 * _step_s(world), is_shared=False, activity="other")
    ),
    "micro-batches": lambda world: _in_parts(world),
    "micro-batches, tight limit": lambda world: _limits(_in_parts(world), max_in_flight_samples=_in_flight(world, 1.5)),
    "micro-batches, a row each": lambda world: _trained(_in_parts(world), records_micro_batches=True),
    "responses that double": lambda world: _doubling(_responses(world, 1.0, world.responses.sigma, 0.0)),
    "engines of two speeds": lambda world: replace(world, slow_engine_factor=2.0, slow_engine_every=2),
}
"""What each system has that the plain one has not, by its name."""


def advice_systems(seed: int = _SEED) -> list[System]:
    """One system of each kind; the same list for a seed. Asked about: every split at the recorded running limit."""
    return [_of_kind(kind, index, seed) for index, kind in enumerate(KINDS)]


def _of_kind(kind: str, index: int, seed: int) -> System:
    drawn = system_of(_QUEUE + 6 * index, seed)
    world = replace(KINDS[kind](drawn.world), name=kind)
    running = drawn.recorded.max_running
    layouts = tuple(Layout(each.trainer_gpus, each.sampler_gpus, running) for each in drawn.layouts)
    return replace(drawn, family=kind, world=world, layouts=tuple(dict.fromkeys(layouts)), steps=_STEPS)
