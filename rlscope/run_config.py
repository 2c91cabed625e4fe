"""What the run was told to do: the `config` of run.json, typed. Every entry may be missing."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Final

_TYPES: Final[dict[str, tuple[type, ...]]] = {
    "int | None": (int,),
    "float | None": (int, float),
    "str | None": (str,),
    "Mapping[str, object] | None": (dict,),
}


@dataclass(frozen=True, slots=True)
class RunConfig:
    """The settings that capture was given; None where it was given none."""

    n_gpus: int | None = None
    samples_per_step: int | None = None
    group_size: int | None = None
    max_staleness: int | None = None
    staleness_policy: str | None = None
    max_in_flight_samples: int | None = None
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


def read_config(raw: Mapping[str, object]) -> tuple[RunConfig, tuple[str, ...]]:
    """The config, and one sentence for each entry whose type is not the contract's (it is then left out)."""
    known: dict[str, object] = {}
    gaps: list[str] = []
    for field in fields(RunConfig):
        value = raw.get(field.name)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, _TYPES[str(field.type)]):
            expected = str(field.type).removesuffix(" | None")
            gaps.append(f"run.json: config.{field.name} is {value!r}, expected {expected}; it is ignored")
            continue
        known[field.name] = value
    return RunConfig(**known), tuple(gaps)  # type: ignore[arg-type]
