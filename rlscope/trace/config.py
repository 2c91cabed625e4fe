"""Reads the settings of a run: the `config` of run.json, typed. Every entry may be missing."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Final

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from rlscope.input_file import describe, json_schema
from rlscope.model.policies import Delivery, Dispatch, QueueOrder, QueuePolicy

_Whole = Annotated[int, Field(strict=True, ge=0, le=2**63 - 1)]
_Count = Annotated[int, Field(strict=True, ge=1, le=2**63 - 1)]
"""A limit of 0 would let nothing run; it is written to mean that there is no limit."""
_Text = Annotated[str, Field(strict=True)]


@dataclass(frozen=True, slots=True)
class RunConfig:
    """Settings that capture received; None if it did not receive one."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(use_attribute_docstrings=True)

    total_gpus: _Count | None = None
    """GPUs in the run"""
    samples_per_step: _Count | None = None
    """samples per training step"""
    group_size: _Count | None = None
    """samples per prompt"""
    max_staleness: _Whole | None = None
    """maximum staleness of a token that is trained on, in versions"""
    staleness_policy: _Text | None = None
    """how that cap is enforced: none, drop, publication_waits or admission"""
    max_in_flight_samples: _Count | None = None
    """maximum samples running and queued at once"""
    max_running_samples: _Count | None = None
    """maximum samples running at once over all engines, including those waiting for their environment; a finished
    sample does not count"""
    queue_capacity_samples: _Count | None = None
    """number of finished samples at which no new sample starts: those in the queue, plus whole groups waiting to
    enter it"""
    max_output_tokens: _Count | None = None
    """maximum length of a response, in tokens"""
    max_running: _Count | None = None
    """maximum requests an engine runs at once"""
    gpus_per_engine: _Count | None = None
    """GPUs per engine"""
    gpus_per_trainer_replica: _Count | None = None
    """GPUs per trainer replica: trainers grow and shrink in steps of this size"""
    model: dict[str, object] | None = None
    """the model: parameters, layers, experts and other known properties"""
    framework: _Text | None = None
    """RL framework of the run"""
    total_steps: _Whole | None = None
    """planned number of training steps"""
    gpu_hour_price: Annotated[float, Field(strict=True, ge=0, allow_inf_nan=False)] | None = None
    """price of a GPU-hour"""
    currency: _Text | None = None
    """currency of that price"""
    dispatch: Dispatch | None = None
    """how samples reach engines: least_loaded, a router sends each sample to the engine with the fewest requests;
    pulled, each engine takes whole groups when it has free slots"""
    queue_policy: QueuePolicy | None = None
    """what happens when the queue is full: wait, finished groups wait to enter; drop_oldest, the oldest group is
    dropped"""
    queue_order: QueueOrder | None = None
    """what the trainer takes first: fifo, the group queued first; lifo, the group queued last; oldest_first, the
    group with the oldest token"""
    delivery: Delivery | None = None
    """unit that enters the queue, leaves it and is dropped: group, a whole group once its last sample is finished;
    sample, each sample separately"""
    in_flight_until_trained: Annotated[bool, Field(strict=True)] | None = None
    """whether samples count against max_in_flight_samples until their training step ends, instead of only until the
    trainer takes them"""
    batches_ahead: Annotated[float, Field(strict=True, ge=0, le=10_000)] | None = None
    """batches that the trainer prefetches from the queue in addition to the one it trains on; no step starts before
    they are there"""


_MODEL: Final = TypeAdapter(RunConfig)


def run_config_schema() -> dict[str, Any]:
    """Return the JSON Schema of run.json's config, with the meaning of each entry."""
    return json_schema(_MODEL)


def read_config(raw: Mapping[str, object]) -> tuple[RunConfig, tuple[str, ...]]:
    """Return the config, and a sentence for each entry that was left out because it does not fit the trace format."""
    try:
        return _MODEL.validate_python(dict(raw)), ()
    except ValidationError as error:
        wrong = {str(each["loc"][0]) for each in error.errors(include_url=False)}
    schema = run_config_schema()
    gaps = (_gap(name, raw[name], schema) for name in schema["properties"] if name in wrong)
    return _MODEL.validate_python({name: value for name, value in raw.items() if name not in wrong}), tuple(gaps)


def entry_kind(name: str, schema: Mapping[str, Any]) -> str:
    """Return the type of a config entry in words."""
    return describe(schema["properties"][name], schema, table="an object")


def _gap(name: str, value: object, schema: Mapping[str, Any]) -> str:
    kind = entry_kind(name, schema)
    expected = f"{kind} that fits in 64 bits" if isinstance(value, int) and abs(value) >= 2**63 else kind
    return f"run.json: config.{name} is {value!r}, expected {expected}; it is ignored"
