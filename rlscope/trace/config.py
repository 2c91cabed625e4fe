"""What the run was told to do: the `config` of run.json, typed. Every entry may be missing."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, get_args, get_origin, get_type_hints

from rlscope.trace.files import is_integer

Dispatch = Literal["least_loaded", "pulled"]
FullQueue = Literal["wait", "drop_oldest"]
QueueOrder = Literal["fifo", "oldest_first"]


@dataclass(frozen=True, slots=True)
class RunConfig:
    """The settings that capture was given; None where it was given none."""

    n_gpus: int | None = None
    samples_per_step: int | None = None
    group_size: int | None = None
    max_staleness: int | None = None
    staleness_policy: str | None = None
    max_in_flight_samples: int | None = None
    max_running_samples: int | None = None
    queue_capacity_samples: int | None = None
    max_output_tokens: int | None = None
    max_running_per_engine: int | None = None
    gpus_per_engine: int | None = None
    gpus_per_trainer_replica: int | None = None
    model: Mapping[str, object] | None = None
    framework: str | None = None
    total_steps: int | None = None
    gpu_hour_price: float | None = None
    currency: str | None = None
    dispatch: Dispatch | None = None
    queue_policy: FullQueue | None = None
    queue_order: QueueOrder | None = None
    batches_ahead: float | None = None


MEANINGS: Final[Mapping[str, str]] = {
    "n_gpus": "GPUs of the run",
    "samples_per_step": "samples of a training step",
    "group_size": "samples of a prompt",
    "max_staleness": "oldest token that is meant to be trained on, versions",
    "staleness_policy": "how that cap is kept: none, drop, publication_waits or admission",
    "max_in_flight_samples": "samples that may run and be queued together",
    "max_running_samples": "samples that may run together over all engines, those at their environment included; a"
    " finished one does not count",
    "queue_capacity_samples": "samples that lie finished before none is begun any more: those that the queue holds, and"
    " whole groups that wait before it",
    "max_output_tokens": "longest response, tokens",
    "max_running_per_engine": "requests that an engine may run at once",
    "gpus_per_engine": "GPUs of an engine",
    "gpus_per_trainer_replica": "GPUs that trainers are added or taken away by",
    "model": "parameters, layers, experts and what else is known of the model",
    "framework": "what the run is made with",
    "total_steps": "training steps that the run is to make",
    "gpu_hour_price": "price of a GPU-hour",
    "currency": "of the price",
    "dispatch": "who gives samples to engines: least_loaded, a router, sample by sample, to the engine with the fewest"
    " requests; pulled, each engine takes whole groups when it has free places",
    "queue_policy": "what a full queue does: wait, those who finish hold their groups back; drop_oldest, it throws the"
    " oldest group away",
    "queue_order": "what the trainer takes first: fifo, the group queued first; oldest_first, the one with the oldest"
    " token",
    "batches_ahead": "how many steps' batches the trainer has taken from the queue besides the one it trains on; it"
    " starts no step before it has them",
}
"""Of each entry, in a line of the trace format's page."""


def read_config(raw: Mapping[str, object]) -> tuple[RunConfig, tuple[str, ...]]:
    """The config, and one sentence for each entry that is not what the contract says (it is then left out)."""
    known: dict[str, object] = {}
    gaps: list[str] = []
    for name, hint in get_type_hints(RunConfig).items():
        value = raw.get(name)
        if value is None:
            continue
        kind = get_args(hint)[0]
        if _fits(value, kind):
            known[name] = value
        else:
            gaps.append(f"run.json: config.{name} is {value!r}, expected {_expected(value, kind)}; it is ignored")
    return RunConfig(**known), tuple(gaps)  # type: ignore[arg-type]


def kind_name(kind: object) -> str:
    """How a reader is told what an entry holds."""
    if get_origin(kind) is Literal:
        return " or ".join(map(str, get_args(kind)))
    return kind.__name__ if isinstance(kind, type) else "object"


def _fits(value: object, kind: object) -> bool:
    if get_origin(kind) is Literal:
        return value in get_args(kind)
    if kind is int or kind is float:
        return is_integer(value) or (kind is float and isinstance(value, float))
    return isinstance(value, str if kind is str else dict)


def _expected(value: object, kind: object) -> str:
    name = kind_name(kind)
    too_large = isinstance(value, int) and not is_integer(value) and not isinstance(value, bool)
    return f"{name} of 64 bits" if too_large and (kind is int or kind is float) else name
