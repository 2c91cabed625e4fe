"""Settings that a what-if can change, and the range of each."""

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Final, TypedDict

from rlscope.errors import Bounds, ImpossibleChangeError


class Changes(TypedDict, total=False):
    """Settings that `what_if` can change. All others keep the run's values. CHANGE_LIMITS has the range of each."""

    trainer_gpus: int | None
    """Trainer GPUs. Without sampler_gpus, the remaining GPUs sample."""
    sampler_gpus: int | None
    """Sampler GPUs. Without trainer_gpus, the remaining GPUs train."""
    total_gpus: int | None
    """Total GPUs. Given alone, they are split in the fastest way."""
    max_running: int | None
    """Maximum running requests per engine."""
    max_staleness: int | None
    """Staleness cap of samples, in versions."""
    length_factor: float | None
    """Factor on the response lengths, which stay below the cap on output tokens."""
    max_output_tokens: int | None
    """Maximum response length, in tokens."""
    samples_per_step: int | None
    """Samples per training step."""
    trainer_speed: float | None
    """Relative speed of the trainers: with 2, their passes take half as long."""
    engine_speed: float | None
    """Relative speed of the engines: with 2, their passes take half as long."""
    weight_update_s: float | None
    """Seconds from the end of a step until both sides continue."""
    queue_capacity_samples: int | None
    """Queue capacity, in samples; 0 means no limit."""
    max_in_flight_samples: int | None
    """Maximum samples in flight, running or queued; 0 means no limit."""
    max_in_flight_groups: int | None
    """Maximum groups in flight, running or queued; 0 means no limit."""
    publish_every: int | None
    """Optimizer steps per weight update."""


_FACTOR: Final = Bounds(0.01, 100.0)
"""Range of a factor. Beyond it, the changed run no longer resembles the recorded one."""
CHANGE_LIMITS: Final[Mapping[str, Bounds]] = {
    "trainer_gpus": Bounds(1),
    "sampler_gpus": Bounds(1),
    "total_gpus": Bounds(2, 65_536),
    "max_running": Bounds(1),
    "max_staleness": Bounds(0),
    "length_factor": _FACTOR,
    "max_output_tokens": Bounds(1),
    # Larger steps take over a minute to simulate.
    "samples_per_step": Bounds(1, 100_000),
    "trainer_speed": _FACTOR,
    "engine_speed": _FACTOR,
    "weight_update_s": Bounds(0.0, 86_400.0),
    "queue_capacity_samples": Bounds(0),
    "max_in_flight_samples": Bounds(0),
    "max_in_flight_groups": Bounds(0),
    "publish_every": Bounds(1, 1_000),
}


def checked_changes(changes: Changes) -> Changes:
    """Return the changes. Raises TypeError for an unknown name, and ImpossibleChangeError for a value out of range."""
    for name, value in changes.items():
        if name not in CHANGE_LIMITS:
            near = get_close_matches(name, CHANGE_LIMITS, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"it takes {', '.join(CHANGE_LIMITS)}"
            raise TypeError(f"what_if() got an unexpected keyword argument {name!r}; {hint}")
        if value is not None:
            CHANGE_LIMITS[name].check(name, value, ImpossibleChangeError)
    return changes
