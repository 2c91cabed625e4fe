"""What is known of a run before it starts, in the terms of the model. No behaviour.

Shares of peaks are guesses with a spread: they are all that makes the answers of a plan uncertain. What a plan states
without a spread is taken for certain, lengths first of all.
"""

from dataclasses import dataclass
from typing import Final, Literal

from rlscope.model.decode_prior import LogNormal
from rlscope.model.hardware import Device, ModelShape
from rlscope.model.layouts import Granularity
from rlscope.model.simulate import Settings
from rlscope.model.system import Admission, Layout, Workload
from rlscope.model.training_flops import TrainedModel

Unknown = Literal[
    "weight_bandwidth",
    "compute",
    "kv_bandwidth",
    "pass_overhead",
    "curve_shape",
    "prefill",
    "training_rate",
    "trainer_scaling",
    "weight_update",
    "lengths",
]
"""What a plan may be unsure of. curve_shape: how decode passes turn from memory to compute, or how soon all experts
are hit; training_rate: the share of the peak that trainers reach; lengths: a factor on all responses."""

MASTER_STATE_BYTES: Final = 16.0
"""Bytes per trained parameter of mixed-precision Adam: 2 + 2 for weights and gradients, 12 for the optimizer's own
copies (ZeRO, Rajbhandari et al. 2020, section 3)."""


@dataclass(frozen=True, slots=True)
class DecodeGuess:
    """Shares of the peaks that an engine reaches; a log_sd of None: as usual for the size of the engine."""

    weight_bandwidth_ratio: float
    weight_bandwidth_log_sd: float | None
    compute_ratio: float
    compute_log_sd: float | None
    kv_bandwidth_ratio: float
    kv_bandwidth_log_sd: float | None
    overhead_scale_s: float | None
    """Of the half-normal law of the time between passes; None: as usual."""
    sharpness: LogNormal
    """p of the p-norm; not used for mixtures of experts."""
    prefill_ratio: LogNormal
    """Share of the peak rate that prefill reaches."""


@dataclass(frozen=True, slots=True)
class TrainingGuess:
    """How fast the trainers train."""

    mfu_ratio: LogNormal
    """Share of the peak; not used where the rate itself is given."""
    tokens_per_gpu_s: LogNormal | None
    """None: by the arithmetic of the model and `mfu_ratio`."""
    model: TrainedModel
    at_gpus: int
    """Trainer GPUs with which that rate is reached; other numbers follow by the exponent."""
    scaling_exponent: float
    scaling_exponent_sd: float
    overhead_s: float
    state_bytes: float
    """Weights, gradients and optimizer, shared by all trainer GPUs."""


@dataclass(frozen=True, slots=True)
class UpdateGuess:
    """What one publication of weights costs."""

    seconds: LogNormal | None
    """None: nothing."""
    pauses_engines: bool
    blocks_trainer: bool
    kv_kept: bool


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """A run that is to be laid out."""

    gpus: int
    granularity: Granularity
    device: Device
    shape: ModelShape
    workload: Workload
    lengths_from: str | None
    """The run that recorded them; None: a lognormal law."""
    lengths_log_sd: float
    decode: DecodeGuess
    training: TrainingGuess
    update: UpdateGuess
    admission: Admission
    settings: Settings
    """Of the event simulator."""
    max_running: int
    kv_capacity_tokens: float
    """Of one engine."""
    most_staleness: int | None
    """Versions that no recommended layout's 95th percentile of samples may exceed."""
    present: Layout | None
    """A layout that is in use already; None: nothing runs yet."""
