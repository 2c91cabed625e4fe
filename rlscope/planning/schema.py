"""Dataclasses of a plan.toml, which describes a run before it exists. Units are in the names of the keys.

`example.toml`, which `rlscope plan --example` prints, has every key with its unit and default. Not covered:
consequences of the figures, which `planning.build` derives.
"""

from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Annotated, ClassVar, Final, Literal

from pydantic import BeforeValidator, ConfigDict, Field, GetPydanticSchema, TypeAdapter
from pydantic_core import core_schema

from rlscope.errors import RlscopeError
from rlscope.input_file import FileKind, ParsedFile, read_source

EXAMPLE: Final = Path(__file__).with_name("example.toml")
"""A complete plan with every key explained; it can be planned as it is."""
PLAN_FILE: Final = FileKind("a plan", "`rlscope plan --example` prints a plan with every key.")

Keeping = Literal["by_layout", "admission", "publication_waits", "drop"]
"""Enforcement of a staleness cap: by choosing a layout that stays under it, by holding samples back, by delaying
publications, or by dropping stale samples."""


@dataclass(frozen=True, slots=True)
class Guess:
    """A number that is not known exactly: its median, and the standard deviation of its logarithm."""

    median: float
    log_sd: float | None = None
    """None: the model's usual spread."""


def _median(least: float, most: float) -> GetPydanticSchema:
    """Read a `Guess`: a number inside these bounds, or a table with `median` and `log_sd`."""
    number = core_schema.float_schema(strict=True, allow_inf_nan=False, ge=least, le=most)
    spread = core_schema.float_schema(strict=True, allow_inf_nan=False, ge=0.0, le=3.0)
    table = core_schema.typed_dict_schema(
        {
            "median": core_schema.typed_dict_field(number),
            "log_sd": core_schema.typed_dict_field(spread, required=False),
        },
        extra_behavior="forbid",
    )
    written = core_schema.union_schema([number, table])
    return GetPydanticSchema(lambda _source, _handler: core_schema.no_info_after_validator_function(_guess, written))


def _guess(written: float | dict[str, float]) -> Guess:
    return Guess(**written) if isinstance(written, dict) else Guess(written)


def _whole(written: object) -> object:
    """Accept TOML's 1e3 and 16.0 as whole numbers."""
    return int(written) if isinstance(written, float) and written.is_integer() else written


_WHOLE: Final = BeforeValidator(_whole)
_Float = Annotated[float, Field(strict=True, allow_inf_nan=False)]
_Flag = Annotated[bool, Field(strict=True)]
_Text = Annotated[str, Field(strict=True)]
# The ends of each range are far beyond any machine, and low enough that no product of several overflows.
_Count = Annotated[int, Field(strict=True, ge=1, le=10_000_000), _WHOLE]
_Positive = Annotated[_Float, Field(ge=1e-6, le=1e9)]
_Parameters = Annotated[_Float, Field(ge=1, le=1e15)]
_Bytes = Annotated[_Float, Field(ge=0.01, le=100)]
_Seconds = Annotated[_Float, Field(ge=0, le=1e6)]
_Tokens = Annotated[_Float, Field(ge=0, le=1e8)]
_NotNegative = Annotated[_Float, Field(ge=0, le=1e6)]
_Share = Annotated[_Float, Field(ge=1e-3, le=1)]
_PositiveGuess = Annotated[Guess, _median(least=1e-3, most=1e9)]
_SecondsGuess = Annotated[Guess, _median(least=0, most=1e6)]
_ShareGuess = Annotated[Guess, _median(least=1e-4, most=1)]


@dataclass(frozen=True, slots=True)
class Gpus:
    """GPUs to be split between trainers and engines."""

    total: Annotated[int, Field(strict=True, ge=1, le=65_536), _WHOLE]
    device: _Text | None = None
    peak_tflops: _Positive | None = None
    bandwidth_tb_per_s: _Positive | None = None
    memory_gb: _Positive | None = None
    gpus_per_engine: _Count = 1
    gpus_per_trainer_replica: _Count = 1
    gpus_per_node: _Count = 1


@dataclass(frozen=True, slots=True)
class Model:
    """Model that is sampled from and trained."""

    config_json: _Text | None = None
    parameters: _Parameters | None = None
    active_parameters: _Parameters | None = None
    layers: _Count | None = None
    attention_heads: _Count | None = None
    kv_heads: _Count | None = None
    head_dim: _Count | None = None
    hidden_size: _Count | None = None
    experts: Annotated[int, Field(strict=True, ge=2, le=100_000), _WHOLE] | None = None
    experts_per_token: _Count | None = None
    kv_latent_dim: _Count | None = None
    bytes_per_weight: _Bytes = 2.0
    bytes_per_kv: _Bytes = 2.0


@dataclass(frozen=True, slots=True)
class Lengths:
    """Lengths of prompts and responses."""

    prompt_tokens: _Tokens | None = None
    from_run: _Text | None = None
    mean_tokens: _PositiveGuess | None = None
    cv_ratio: Annotated[_Float, Field(ge=1e-3, le=10)] | None = None
    percentiles: dict[str, _Positive] | None = None
    max_output_tokens: Annotated[int, Field(strict=True, ge=1, le=10_000_000), _WHOLE] | None = None


@dataclass(frozen=True, slots=True)
class Batch:
    """Samples of a training step."""

    samples_per_step: Annotated[int, Field(strict=True, ge=1, le=100_000), _WHOLE]
    group_size: _Count = 1
    kept_ratio: _Share = 1.0
    total_steps: _Count | None = None


@dataclass(frozen=True, slots=True)
class Training:
    """Speed of the trainers."""

    mfu_ratio: _ShareGuess | None = None
    tokens_per_gpu_s: _PositiveGuess | None = None
    rate_at_gpus: _Count | None = None
    count_prompts: _Flag = True
    recompute_activations: _Flag = False
    extra_forward_passes: Annotated[int, Field(strict=True, ge=0, le=10), _WHOLE] = 0
    step_overhead_s: _Seconds = 0.0
    scaling_exponent: _Share | None = None
    scaling_exponent_sd: Annotated[_Float, Field(ge=0, le=1)] | None = None
    state_bytes_per_parameter: _NotNegative | None = None


@dataclass(frozen=True, slots=True)
class Weights:
    """Transfer of new weights to the engines."""

    weight_update_s: _SecondsGuess | None = None
    pauses_engines: _Flag = True
    blocks_trainer: _Flag = False
    kv_kept: _Flag = True


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits on staleness, concurrency and memory."""

    max_staleness: Annotated[int, Field(strict=True, ge=0, le=1_000_000), _WHOLE] | None = None
    staleness_policy: Keeping = "by_layout"
    max_running: _Count = 512
    queue_capacity_samples: _Count | None = None
    max_in_flight_samples: _Count | None = None
    kv_capacity_tokens: Annotated[_Float, Field(ge=1, le=1e12)] | None = None


@dataclass(frozen=True, slots=True)
class Environment:
    """Tools and rewards."""

    wait_s: _Seconds = 0.0


@dataclass(frozen=True, slots=True)
class Efficiency:
    """Shares of the device's peaks that are reached."""

    weight_bandwidth_ratio: _ShareGuess | None = None
    compute_ratio: _ShareGuess | None = None
    kv_bandwidth_ratio: _ShareGuess | None = None
    prefill_ratio: _ShareGuess | None = None
    pass_overhead_s: _SecondsGuess | None = None
    memory_ratio: _Share = 0.9


@dataclass(frozen=True, slots=True)
class Price:
    """Price of a GPU."""

    gpu_hour_price: _Positive | None = None
    currency: _Text = ""


@dataclass(frozen=True, slots=True)
class Current:
    """Current layout."""

    trainer_gpus: _Count
    sampler_gpus: _Count
    max_running: _Count


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanTables:
    """Sections of a plan; None: absent, and there is no default."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    gpus: Gpus
    model: Model = Model()
    lengths: Lengths = Lengths()
    batch: Batch
    training: Training = Training()
    weights: Weights = Weights()
    limits: Limits = Limits()
    environment: Environment = Environment()
    efficiency: Efficiency = Efficiency()
    price: Price = Price()
    current: Current | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanFile(PlanTables):
    """A plan and the file that it was read from."""

    source: ParsedFile

    def error(self, key: str, *, found: str, expected: str, next_step: str | None = None) -> RlscopeError:
        """Build an error that names the file and a key, such as "gpus.total"."""
        return self.source.error(tuple(key.split(".")), found=found, expected=expected, next_step=next_step)


@cache
def model() -> TypeAdapter[PlanTables]:
    """Return the model of a plan. Building it takes longer than importing this module, which most commands do."""
    return TypeAdapter(PlanTables)


def read_plan(path: Path) -> PlanFile:
    """Read a plan and check its keys. Raises RlscopeError that names file and key."""
    source = read_source(path, PLAN_FILE)
    tables = source.validated(model())
    return PlanFile(source=source, **{each.name: getattr(tables, each.name) for each in fields(tables)})
