"""What the run was told to do: the `config` of run.json, typed. Every entry may be missing."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import get_args, get_type_hints

from rlscope.run_files import is_integer


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


def _fits(value: object, kind: object) -> bool:
    if kind is int or kind is float:
        return is_integer(value) or (kind is float and isinstance(value, float))
    return isinstance(value, str if kind is str else dict)


def _expected(value: object, kind: object) -> str:
    name = kind.__name__ if isinstance(kind, type) else "object"
    too_large = isinstance(value, int) and not is_integer(value) and not isinstance(value, bool)
    return f"{name} of 64 bits" if too_large and kind in (int, float) else name
