"""A plan.toml as dataclasses: what a run is to be, before there is one. Units are in the names of the keys.

Every key, its unit and what is taken where it is missing stands in `plan_example.toml`, which `rlscope plan --example`
prints. Not covered: what follows from the figures, which `plan_ahead.py` works out.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from rlscope.errors import RlscopeError
from rlscope.plan_keys import Guess, PlanText, Range, near_misses, read_section

EXAMPLE: Final = Path(__file__).with_name("plan_example.toml")
"""A complete plan, every key explained; it plans as it is."""

Keeping = Literal["by_layout", "admission", "publication_waits", "drop"]
"""How a staleness cap is kept: by choosing a layout that keeps it, by holding samples back, by holding publications
back, or by dropping what is too old."""
_ONE: Final = Range(least=1)
_NONE: Final = Range(least=0)
_SOME: Final = Range(above=0)
_SHARE: Final = Range(above=0, most=1)


@dataclass(frozen=True, slots=True)
class Gpus:
    """What there is to be split."""

    total: Annotated[int, Range(least=1, most=65_536)]
    device: str | None = None
    peak_tflops: Annotated[float | None, _SOME] = None
    bandwidth_tb_per_s: Annotated[float | None, _SOME] = None
    memory_gb: Annotated[float | None, _SOME] = None
    gpus_per_engine: Annotated[int, _ONE] = 1
    gpus_per_trainer_replica: Annotated[int, _ONE] = 1
    gpus_per_node: Annotated[int, _ONE] = 1


@dataclass(frozen=True, slots=True)
class Model:
    """What is sampled from and trained."""

    config_json: str | None = None
    parameters: Annotated[float | None, _SOME] = None
    active_parameters: Annotated[float | None, _SOME] = None
    layers: Annotated[int | None, _ONE] = None
    attention_heads: Annotated[int | None, _ONE] = None
    kv_heads: Annotated[int | None, _ONE] = None
    head_dim: Annotated[int | None, _ONE] = None
    experts: Annotated[int | None, Range(least=2)] = None
    experts_per_token: Annotated[int | None, _ONE] = None
    kv_latent_dim: Annotated[int | None, _ONE] = None
    bytes_per_weight: Annotated[float, _SOME] = 2.0
    bytes_per_kv: Annotated[float, _SOME] = 2.0


@dataclass(frozen=True, slots=True)
class Lengths:
    """Prompts and responses."""

    prompt_tokens: Annotated[float | None, _NONE] = None
    from_run: str | None = None
    mean_tokens: Annotated[Guess | None, _SOME] = None
    cv_ratio: Annotated[float | None, Range(above=0, most=10)] = None
    percentiles: Annotated[dict[str, float] | None, _SOME] = None
    cap_tokens: Annotated[int | None, Range(least=1, most=10_000_000)] = None


@dataclass(frozen=True, slots=True)
class Batch:
    """What a step trains on."""

    samples_per_step: Annotated[int, Range(least=1, most=100_000)]
    group_size: Annotated[int, _ONE] = 1
    kept_ratio: Annotated[float, _SHARE] = 1.0
    steps: Annotated[int | None, _ONE] = None


@dataclass(frozen=True, slots=True)
class Training:
    """How fast the trainers train."""

    mfu_ratio: Annotated[Guess | None, _SHARE] = None
    tokens_per_gpu_s: Annotated[Guess | None, _SOME] = None
    rate_at_gpus: Annotated[int | None, _ONE] = None
    count_prompts: bool = True
    recompute_activations: bool = False
    extra_forward_passes: Annotated[int, Range(least=0, most=10)] = 0
    step_overhead_s: Annotated[float, _NONE] = 0.0
    scaling_exponent: Annotated[float | None, _SHARE] = None
    scaling_exponent_sd: Annotated[float | None, Range(least=0, most=1)] = None
    state_bytes_per_parameter: Annotated[float | None, _NONE] = None


@dataclass(frozen=True, slots=True)
class Weights:
    """How new weights reach the engines."""

    update_s: Annotated[Guess | None, _NONE] = None
    bandwidth_gb_per_s: Annotated[Guess | None, _SOME] = None
    pauses_engines: bool = True
    blocks_trainer: bool = False
    kv_kept: bool = True


@dataclass(frozen=True, slots=True)
class Limits:
    """What must not be passed."""

    max_staleness: Annotated[int | None, _NONE] = None
    staleness_kept: Keeping = "by_layout"
    max_running: Annotated[int, _ONE] = 512
    queue_capacity_samples: Annotated[int | None, _ONE] = None
    max_in_flight_samples: Annotated[int | None, _ONE] = None
    kv_capacity_tokens: Annotated[float | None, _SOME] = None


@dataclass(frozen=True, slots=True)
class Environment:
    """Tools and rewards."""

    wait_s: Annotated[float, _NONE] = 0.0


@dataclass(frozen=True, slots=True)
class Efficiency:
    """Shares of the device's peaks that are reached."""

    weight_bandwidth_ratio: Annotated[Guess | None, _SHARE] = None
    compute_ratio: Annotated[Guess | None, _SHARE] = None
    kv_bandwidth_ratio: Annotated[Guess | None, _SHARE] = None
    prefill_ratio: Annotated[Guess | None, _SHARE] = None
    sharpness: Annotated[Guess | None, _ONE] = None
    pass_overhead_s: Annotated[float | None, _NONE] = None
    memory_ratio: Annotated[float, _SHARE] = 0.9


@dataclass(frozen=True, slots=True)
class Price:
    """What a GPU costs."""

    gpu_hour: Annotated[float | None, _SOME] = None
    currency: str = ""


@dataclass(frozen=True, slots=True)
class Present:
    """The layout that is in use already."""

    trainer_gpus: Annotated[int, _ONE]
    sampler_gpus: Annotated[int, _ONE]
    max_running: Annotated[int, _ONE]


@dataclass(frozen=True, slots=True)
class PlanFile:
    """All sections of a plan; None: not written, and nothing to be taken instead."""

    text: PlanText
    gpus: Gpus
    model: Model
    lengths: Lengths
    batch: Batch
    training: Training
    weights: Weights
    limits: Limits
    environment: Environment
    efficiency: Efficiency
    price: Price
    present: Present | None


_SECTIONS: Final[Mapping[str, type[Any]]] = {
    "gpus": Gpus,
    "model": Model,
    "lengths": Lengths,
    "batch": Batch,
    "training": Training,
    "weights": Weights,
    "limits": Limits,
    "environment": Environment,
    "efficiency": Efficiency,
    "price": Price,
}


def read_plan(path: Path) -> PlanFile:
    """Read a plan and check its keys. Raises RlscopeError that names file, line and key."""
    text, given = _parsed(path)
    known = (*_SECTIONS, "present")
    for name, value in given.items():
        if name not in known:
            meant = near_misses(name, known)
            expected = f"one of the sections {', '.join(known)}" + ("" if meant is None else f" ({meant})")
            raise text.error(name, None, found=f"the entry {name!r}", expected=expected)
        if not isinstance(value, dict):
            raise text.error(name, None, found=repr(value), expected=f"a section, [{name}]")
    sections: dict[str, Any] = {
        name: read_section(kind, given.get(name, {}), text, name) for name, kind in _SECTIONS.items()
    }
    present = read_section(Present, given["present"], text, "present") if "present" in given else None
    return PlanFile(text=text, present=present, **sections)


def _parsed(path: Path) -> tuple[PlanText, Mapping[str, Any]]:
    expected, step = "a plan in TOML", "`rlscope plan --example > plan.toml` writes one to start from."
    try:
        text = path.read_text(encoding="utf-8")
        return PlanText(path, text), tomllib.loads(text)
    except OSError as error:
        raise RlscopeError.of(path, found=error.strerror or str(error), expected=expected, next_step=step) from error
    except UnicodeDecodeError as error:
        raise RlscopeError.of(path, found="text that is no UTF-8", expected=expected, next_step=step) from error
    except tomllib.TOMLDecodeError as error:
        raise RlscopeError.of(path, found=str(error), expected=expected, next_step=step) from error
