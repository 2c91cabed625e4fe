"""Mean staleness of groups as Applied Compute's closed form has it, to set beside the model's own.

From "Predicting and Controlling Staleness in Fully Asynchronous RL Training" (Dong, Goel and Yu, 2026), for a queue
that drops its oldest groups when full. On the runs published with it the form is above what was measured, by 0.2
versions on average and never below: read it as an upper estimate. Not covered: tokens, maxima, caps.
"""

from typing import Final

PUBLISHED_TOLERANCE_VERSIONS: Final = 0.3
"""How far the form may be off on the published runs; or a tenth of it, where that is more."""


def pre_queue_staleness(
    concurrency: float, samples_per_step: float, group_tail_ratio: float, load_ratio: float
) -> float:
    """Versions published while a group is sampled, C M / (B max(1, rho)).

    concurrency: running samples; load_ratio: what the samplers could make over what the trainers could take.
    """
    return concurrency * group_tail_ratio / (samples_per_step * max(1.0, load_ratio))


def in_queue_staleness(load_ratio: float, queue_batches: float) -> float:
    """Versions published while a group lies in a queue of q batches: rho below 1, else (2 q + rho - 1) / (2 rho)."""
    if load_ratio < 1.0:
        return load_ratio
    return (2.0 * queue_batches + load_ratio - 1.0) / (2.0 * load_ratio)


def group_staleness(
    concurrency: float, samples_per_step: float, group_tail_ratio: float, load_ratio: float, queue_batches: float
) -> float:
    """Mean staleness of a group, from the version of its first token: the sum of both parts."""
    sampled = pre_queue_staleness(concurrency, samples_per_step, group_tail_ratio, load_ratio)
    return sampled + in_queue_staleness(load_ratio, queue_batches)
