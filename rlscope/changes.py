"""Settings that a what-if can change, with the range and the meaning of each."""

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Annotated, Any, Final, NamedTuple, TypedDict, get_args, get_type_hints

from rlscope.errors import Bounds, ImpossibleChangeError

_FACTOR: Final = Bounds(0.01, 100.0)
"""Range of a factor. Beyond it, the changed run no longer resembles the recorded one."""


class Changes(TypedDict, total=False):
    """Settings that `what_if` can change. All others keep the run's values. Each has its range and its meaning."""

    trainer_gpus: Annotated[int | None, Bounds(1), "Trainer GPUs. Given alone, the remaining GPUs sample."]
    sampler_gpus: Annotated[int | None, Bounds(1), "Sampler GPUs. Given alone, the remaining GPUs train."]
    total_gpus: Annotated[int | None, Bounds(2, 65_536), "Total GPUs. Given alone, they are split in the fastest way."]
    target_tokens_per_s: Annotated[
        float | None, Bounds(0.001, 1e12), "Trained tokens per second to reach with the fewest GPUs, in any split."
    ]
    max_running: Annotated[int | None, Bounds(1), "Maximum running requests per engine."]
    max_staleness: Annotated[int | None, Bounds(0), "Staleness cap of samples, in versions."]
    length_factor: Annotated[
        float | None, _FACTOR, "Factor on the response lengths, which stay below the cap on output tokens."
    ]
    max_output_tokens: Annotated[int | None, Bounds(1), "Maximum response length, in tokens."]
    # Larger steps take over a minute to simulate.
    samples_per_step: Annotated[int | None, Bounds(1, 100_000), "Samples per training step."]
    trainer_speed: Annotated[
        float | None, _FACTOR, "Relative speed of the trainers: with 2, their passes take half as long."
    ]
    engine_speed: Annotated[
        float | None, _FACTOR, "Relative speed of the engines: with 2, their passes take half as long."
    ]
    weight_update_s: Annotated[
        float | None, Bounds(0.0, 86_400.0), "Seconds from the end of a step until both sides continue."
    ]
    queue_capacity_samples: Annotated[int | None, Bounds(0), "Queue capacity, in samples; 0 means no limit."]
    max_in_flight_samples: Annotated[
        int | None, Bounds(0), "Maximum samples in flight, running or queued; 0 means no limit."
    ]
    publish_every: Annotated[int | None, Bounds(1, 1_000), "Optimizer steps per weight update."]


class ChangeableSetting(NamedTuple):
    """A setting that a what-if can change."""

    kind: Any
    """Type of the value, or None."""
    limits: Bounds
    meaning: str


CHANGEABLE: Final[Mapping[str, ChangeableSetting]] = {
    name: ChangeableSetting(*get_args(hint)) for name, hint in get_type_hints(Changes, include_extras=True).items()
}


def checked_changes(changes: Changes) -> Changes:
    """Return the changes. Raises TypeError for an unknown name, and ImpossibleChangeError for a value out of range."""
    for name, value in changes.items():
        if name not in CHANGEABLE:
            near = get_close_matches(name, CHANGEABLE, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"it takes {', '.join(CHANGEABLE)}"
            raise TypeError(f"what_if() got an unexpected keyword argument {name!r}; {hint}")
        if value is not None:
            CHANGEABLE[name].limits.check(name, value, ImpossibleChangeError)
    return changes
