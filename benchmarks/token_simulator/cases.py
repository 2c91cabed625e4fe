"""Runs that a model of layouts must not be fooled by: more GPUs on one side help none of them, or nobody can know.

Each says what an honest analysis finds.
"""

from dataclasses import replace
from typing import Final, NamedTuple

from .world import Layout, Limits, Passes, Responses, Rollouts, Training, Updates, World


class Case(NamedTuple):
    """A world, the layout that it is recorded at, and for how many steps."""

    world: World
    layout: Layout
    steps: int


PLAIN: Final = World(
    name="plain",
    gpus=8,
    passes=Passes(weights_s=0.007, request_s=6e-5, kv_token_s=4e-8, between_s=5e-4, noise_sd=0.02, padded_to=4),
    responses=Responses(median_tokens=150, sigma=0.6, max_output_tokens=600, group_share_ratio=0.3),
    rollouts=Rollouts(samples_per_step=96, group_size=8),
    training=Training(tokens_per_gpu_s=6000, reference_gpus=4, overhead_s=0.05, noise_sd=0.03),
    updates=Updates(publish_s=0.05, transfer_s=0.1, apply_s=0.05),
    limits=Limits(queue_capacity_samples=384, max_staleness=6, staleness_policy="drop"),
    kv_capacity_tokens=40_000,
)
"""Nothing out of the ordinary: eight GPUs, dense model, one GPU an engine."""

BOUND_BY_UPDATES: Final = Case(
    replace(PLAIN, name="bound_by_updates", updates=Updates(publish_s=10.0, transfer_s=0.5, apply_s=2.0)),
    Layout(4, 4, 32),
    40,
)
"""Publishing takes ten times as long as training: name weight updates, move no GPUs."""

BOUND_BY_ENVIRONMENT: Final = Case(
    replace(
        PLAIN,
        name="bound_by_environment",
        responses=Responses(median_tokens=60, sigma=0.5, max_output_tokens=300),
        rollouts=Rollouts(32, 8, environment_ratio=1.0, environment_s=20.0),
        limits=Limits(max_in_flight_samples=96),
    ),
    Layout(2, 6, 16),
    40,
)
"""96 samples at a time, each of which waits for its environment forty times as long as it generates: engines stand
idle however many there are."""

ONE_BATCH_SIZE: Final = Case(
    replace(PLAIN, name="one_batch_size", passes=replace(PLAIN.passes, padded_to=1)), Layout(5, 3, 16), 50
)
"""Samplers are the bottleneck and always full: all but a few passes run 16 requests, and the slope is not seen."""

DRIFTING_LENGTHS: Final = Case(
    replace(PLAIN, name="drifting_lengths", responses=replace(PLAIN.responses, growth_ratio=0.012)),
    Layout(4, 4, 32),
    80,
)
"""Responses grow by 1.2 % with every version: no rate of the first half holds in the second."""

TWELVE_STEPS: Final = Case(replace(PLAIN, name="twelve_steps"), Layout(4, 4, 32), 12)
"""Too short to tell a level from warm-up."""

BEST_ALREADY: Final = Case(
    replace(
        PLAIN,
        name="best_already",
        passes=replace(PLAIN.passes, request_s=3e-4),
        limits=Limits(queue_capacity_samples=384),
        kv_capacity_tokens=None,
    ),
    Layout(3, 5, 64),
    50,
)
"""Engines are bound by compute, so a larger batch brings next to nothing, and every other split is slower: keep it."""

NEGATIVE_CASES: Final = (
    BOUND_BY_UPDATES,
    BOUND_BY_ENVIRONMENT,
    ONE_BATCH_SIZE,
    DRIFTING_LENGTHS,
    TWELVE_STEPS,
    BEST_ALREADY,
)
