"""Prior knowledge of a plan, and the systems that follow from it: all guesses at their medians, or drawn.

A guess has a spread; values that a plan states without one, lengths above all, are taken as certain. A draw is one
standard normal number per unknown, so a guess without a spread stays fixed, and the draws of one unknown are draws of
all unknowns with the others held. Nothing is measured: every grade is `assumed`. Not covered: guesses that depend on
each other, such as shares that the same software lowers together.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal, get_args

import numpy as np
from scipy.special import ndtr

from rlscope.model.calibration import DRAWS, Calibration
from rlscope.model.decode.curves import RooflineCurve
from rlscope.model.decode.fit import CurveFit
from rlscope.model.decode.prior import (
    SHARPNESS,
    HardwarePrior,
    LogNormal,
    Shares,
    expected_prefill_tokens_per_s,
    hardware_prior,
)
from rlscope.model.hardware.devices import Device, ModelShape
from rlscope.model.numerics.stratified import sorted_normals
from rlscope.model.system import (
    Admission,
    Engine,
    Granularity,
    Layout,
    System,
    Trainer,
    WeightUpdateCost,
    Workload,
)
from rlscope.model.training.scaling import TrainingRate, exponents_at
from rlscope.model.training.step_time import TrainedModel, training_flops_per_token
from rlscope.model.warnings import ModelWarning

Unknown = Literal[
    "weight_bandwidth",
    "compute",
    "kv_bandwidth",
    "pass_overhead",
    "curve_shape",
    "prefill",
    "training_rate",
    "expert_routing",
    "trainer_scaling",
    "weight_update",
    "lengths",
]
"""Quantities that a plan may be unsure of. curve_shape: how decode passes turn from memory-bound to compute-bound, or
how soon all experts are hit. training_rate: the share of the peak that trainers reach. expert_routing: the cost of
sending tokens to experts in training. lengths: a factor on all responses."""
Deviations = Mapping[Unknown, float]
"""Standard deviations from the median, by unknown."""

MASTER_STATE_BYTES: Final = 16.0
"""Bytes per trained parameter of mixed-precision Adam: 2 + 2 for weights and gradients, 12 for the optimizer's own
copies (ZeRO, Rajbhandari et al. 2020, section 3)."""
_BOTH_PASSES: Final = 3.0
"""Number of forward passes that cost as much as one forward and one backward pass."""
UNKNOWNS: Final[tuple[Unknown, ...]] = get_args(Unknown)
_SEED: Final = 20_260_201
"""Seed of every draw: the same plan gives the same answer."""


@dataclass(frozen=True, slots=True)
class DecodeGuess:
    """Shares of the peaks that an engine reaches. log_sd None: the usual spread for the size of the engine."""

    weight_bandwidth_ratio: float
    weight_bandwidth_log_sd: float | None
    compute_ratio: float
    compute_log_sd: float | None
    kv_bandwidth_ratio: float
    kv_bandwidth_log_sd: float | None
    overhead_s: LogNormal | None
    """Seconds of launching the layers of a pass; None: the usual time for the model and the size of the engine."""
    prefill_ratio: LogNormal
    """Share of the peak rate that prefill reaches."""


@dataclass(frozen=True, slots=True)
class TrainingGuess:
    """Training speed of the trainers."""

    mfu_ratio: LogNormal
    """Share of the peak; not used if the rate itself is given."""
    tokens_per_gpu_s: LogNormal | None
    """None: computed from the arithmetic of the model and `mfu_ratio`."""
    model: TrainedModel
    routing_s_per_token: LogNormal | None
    """GPU-seconds that routing to experts adds to a token's forward and backward pass. None: nothing, or already
    included in the share of the peak or in the rate."""
    at_gpus: int
    """Trainer GPUs at which that rate is reached; the exponent gives the rate at other numbers."""
    scaling_exponent: float
    scaling_exponent_sd: float
    overhead_s: float
    state_bytes: float
    """Bytes of weights, gradients and optimizer state, shared by all trainer GPUs."""


@dataclass(frozen=True, slots=True)
class UpdateGuess:
    """Cost of one publication of weights."""

    seconds: LogNormal | None
    """None: no time."""
    is_stated: bool
    """Whether the plan states the time, or a bandwidth."""
    pauses_engines: bool
    blocks_trainer: bool
    kv_kept: bool


@dataclass(frozen=True, slots=True, eq=False)
class PlanInputs:
    """Inputs of a plan for a run."""

    gpus: int
    granularity: Granularity
    device: Device
    shape: ModelShape
    workload: Workload
    lengths_from: str | None
    """Run that recorded the lengths; None: a lognormal distribution."""
    lengths_log_sd: float
    decode: DecodeGuess
    training: TrainingGuess
    update: UpdateGuess
    admission: Admission
    max_running: int
    kv_capacity_tokens: float
    """KV capacity of one engine."""
    most_staleness: int | None
    """Maximum p95 staleness over samples, in versions, of a recommended layout."""
    present: Layout | None
    """Current layout; None if nothing runs yet."""


class UnplannableError(Exception):
    """The shape of the model is incomplete; the message names the missing part."""


def planned_system(plan: PlanInputs, deviations: Deviations) -> System:
    """Return the system of one draw; an unknown without a deviation is at its median. Raises UnplannableError."""
    deviations = {**dict.fromkeys(UNKNOWNS, 0.0), **deviations}
    workload = _workload(plan, deviations)
    return System(
        workload=workload,
        engine=Engine(
            gpus=plan.granularity.gpus_per_engine,
            curve=_curve(plan, deviations),
            max_running=plan.max_running,
            kv_capacity_tokens=plan.kv_capacity_tokens,
            prefill_tokens_per_s=expected_prefill_tokens_per_s(
                plan.shape,
                plan.device,
                plan.granularity.gpus_per_engine,
                min(plan.decode.prefill_ratio.at(deviations["prefill"]), 1.0),
            ),
        ),
        trainer=_trainer(plan, workload, deviations),
        update=_update(plan, deviations),
        admission=plan.admission,
    )


def drawn_systems(plan: PlanInputs, count: int = DRAWS) -> tuple[System, ...]:
    """Draw equally likely systems from the prior."""
    rows = np.random.default_rng(_SEED).standard_normal((count, len(UNKNOWNS)))
    return tuple(planned_system(plan, dict(zip(UNKNOWNS, row.tolist(), strict=True))) for row in rows)


def drawn_alone(plan: PlanInputs, unknown: Unknown, count: int) -> tuple[System, ...]:
    """Return systems that differ in one unknown, at the middles of `count` equally likely parts of its prior."""
    return tuple(planned_system(plan, {unknown: deviation}) for deviation in sorted_normals(count).tolist())


def is_unsure(plan: PlanInputs, unknown: Unknown) -> bool:
    """Whether the plan leaves an unknown open: one deviation from its median, to either side, changes the system."""
    return any(planned_system(plan, {unknown: deviation}) != planned_system(plan, {}) for deviation in (-1.0, 1.0))


def assumed_calibration(plan: PlanInputs, layout: Layout) -> Calibration:
    """Build a calibration from the plan instead of a run; layout: any considered layout."""
    system, draws = planned_system(plan, {}), drawn_systems(plan)
    return Calibration(
        system=system,
        draws=draws,
        layout=layout,
        synchronous=False,
        steps=0,
        steps_per_version=1.0,
        # A fit without passes: the hardware prior alone.
        curve=CurveFit(
            form="expert_hit" if plan.shape.has_experts else "pnorm",
            curve=system.engine.curve,
            draws=tuple(draw.engine.curve for draw in draws),
            warnings=(ModelWarning.NO_PASSES,),
        ),
        training=TrainingRate(system.trainer, tuple(draw.trainer for draw in draws)),
        warnings=(),
    )


def engine_prior(plan: PlanInputs) -> HardwarePrior:
    """Prior cost of a pass, with the plan's own shares and spreads. Raises UnplannableError."""
    decode, gpus = plan.decode, plan.granularity.gpus_per_engine
    shares = Shares(decode.weight_bandwidth_ratio, decode.compute_ratio, decode.kv_bandwidth_ratio)
    prior = hardware_prior(plan.shape, plan.device, gpus, shares)
    if prior is None:
        raise UnplannableError("the parameters of the model, their bytes or its experts are unknown")
    experts = prior.experts
    return replace(
        prior,
        flat_s=_respread(prior.flat_s, decode.weight_bandwidth_log_sd),
        per_request_s=_respread(prior.per_request_s, decode.compute_log_sd),
        kv_s_per_token=prior.kv_s_per_token and _respread(prior.kv_s_per_token, decode.kv_bandwidth_log_sd),
        overhead_s=prior.overhead_s if decode.overhead_s is None else decode.overhead_s,
        experts=experts and replace(experts, experts_s=_respread(experts.experts_s, decode.weight_bandwidth_log_sd)),
    )


def _respread(guess: LogNormal, log_sd: float | None) -> LogNormal:
    return guess if log_sd is None else replace(guess, log_sd=log_sd)


def _workload(plan: PlanInputs, deviations: Deviations) -> Workload:
    factor = LogNormal(1.0, plan.lengths_log_sd).at(deviations["lengths"])
    if factor == 1.0:
        return plan.workload
    return replace(plan.workload, lengths=plan.workload.lengths.scaled(factor))


def _curve(plan: PlanInputs, deviations: Deviations) -> RooflineCurve:
    prior, decode = engine_prior(plan), plan.decode
    bandwidth, shape, kv = deviations["weight_bandwidth"], deviations["curve_shape"], prior.kv_s_per_token
    kv_s = 0.0 if kv is None else _reached(kv, deviations["kv_bandwidth"], decode.kv_bandwidth_ratio)
    overhead_s = prior.overhead_s.at(deviations["pass_overhead"])
    flat_s = _reached(prior.flat_s, bandwidth, decode.weight_bandwidth_ratio)
    per_request_s = _reached(prior.per_request_s, deviations["compute"], decode.compute_ratio)
    if (experts := prior.experts) is None:
        return RooflineCurve(flat_s, per_request_s, SHARPNESS.at(shape), overhead_s, kv_s)
    experts_s = _reached(experts.experts_s, bandwidth, decode.weight_bandwidth_ratio)
    hit_rate = experts.hit_rate.at(shape)
    return RooflineCurve(flat_s, per_request_s, 1.0, overhead_s, kv_s, experts_s=experts_s, hit_rate=hit_rate)


def _trainer(plan: PlanInputs, workload: Workload, deviations: Deviations) -> Trainer:
    guess, deviation = plan.training, deviations["training_rate"]
    if guess.tokens_per_gpu_s is not None:
        rate = guess.tokens_per_gpu_s.at(deviation)
    else:
        # The mean length of the sequence that contains a random generated token: P + E[L^2] / E[L].
        sequence_tokens = workload.prompt_tokens + workload.lengths.second_moment / workload.lengths.mean_tokens
        flop_per_s = min(guess.mfu_ratio.at(deviation), 1.0) * plan.device.bf16_flop_per_s
        rate = flop_per_s / training_flops_per_token(guess.model, sequence_tokens)
        rate = 1.0 / (1.0 / rate + _routing_s(guess, deviations["expert_routing"]))
    exponent, sd = guess.scaling_exponent, guess.scaling_exponent_sd
    if sd:
        exponent = float(exponents_at(ndtr(deviations["trainer_scaling"]), exponent, sd))
    return Trainer(rate, guess.at_gpus, exponent, guess.overhead_s)


def _routing_s(guess: TrainingGuess, deviation: float) -> float:
    """GPU-seconds of routing a trained token, in all its passes."""
    both = guess.routing_s_per_token
    return 0.0 if both is None else both.at(deviation) * guess.model.passes / _BOTH_PASSES


def _update(plan: PlanInputs, deviations: Deviations) -> WeightUpdateCost:
    update = plan.update
    seconds = 0.0 if update.seconds is None else update.seconds.at(deviations["weight_update"])
    return WeightUpdateCost(
        engine_pause_s=seconds if update.pauses_engines else 0.0,
        trainer_blocked_s=seconds if update.blocks_trainer else 0.0,
        # An update that stops no engine still delays the first token of the new version.
        delay_s=0.0 if update.pauses_engines else seconds,
        kv_kept=update.kv_kept,
    )


def _reached(seconds: LogNormal, deviation: float, median_ratio: float) -> float:
    """Seconds at a share of a peak, given the median share: no draw is faster than the peak itself."""
    return max(seconds.at(deviation), seconds.median * median_ratio)
