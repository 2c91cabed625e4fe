"""Build the model's input from a plan.toml: the joint meaning of its figures, and defaults for missing ones.

Errors name the line of the plan. The model is counted from its Hugging Face config, or taken as the plan describes it.
Lengths follow a distribution that the plan states, or those that an earlier run recorded: its samples that began in the
steady state, or all of them if it has none; unfinished samples are censored.

Not covered: whether the figures are true, and how lengths would differ with another model or other prompts.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Final

import polars as pl

from rlscope.analysis.observe import ObservedLengths, UnobservableError, observe_lengths
from rlscope.analysis.run_facts import steady_window
from rlscope.errors import RlscopeError
from rlscope.input_file import did_you_mean, read_regular
from rlscope.model.decode.prior import PREFILL_EFFICIENCY, USUAL_SHARES, LogNormal
from rlscope.model.forecast.plan import PlanResult, PoorScaling, fastest_tokens_per_s, plan_layouts
from rlscope.model.forecast.plan_prior import (
    MASTER_STATE_BYTES,
    DecodeGuess,
    PlanInputs,
    TrainingGuess,
    UnplannableError,
    UpdateGuess,
)
from rlscope.model.hardware.devices import DEVICES, Device, ModelShape, find_device
from rlscope.model.hardware.kv_cache import capacity_from_device
from rlscope.model.hardware.parameters import Counted, UncountableError, count_parameters
from rlscope.model.lengths import LengthLaw, law_of_mean, law_of_percentiles
from rlscope.model.system import Admission, Granularity, Layout, Workload, possible_layouts
from rlscope.model.training.scaling import PRIOR_EXPONENT, PRIOR_EXPONENT_SD
from rlscope.model.training.step_time import (
    LIKELY_MFU,
    LIKELY_ROUTING_LOG_SD,
    TrainedModel,
    expert_routing_s_per_token,
)
from rlscope.model.weight_transfer import usual_update_s
from rlscope.planning.schema import Guess, PlanFile, read_plan
from rlscope.trace.query import Argument, ask
from rlscope.trace.store import OpenRun, open_run

_DENSE: Final = ("parameters", "layers", "attention_heads", "head_dim")
_MIXTURE: Final = ("experts", "experts_per_token", "active_parameters")


def decoder_of(file: PlanFile) -> Counted:
    """Return the model; the plan's entries override the model's config. Raises RlscopeError."""
    model, counted = file.model, Counted(ModelShape(), attention_width=0, hidden_size=0)
    if model.config_json is None:
        _refuse_gaps(file)
    else:
        counted = _parameters_of_config(file, model.config_json)
    stated: dict[str, Any] = {each.name: getattr(model, each.name, None) for each in fields(ModelShape)}
    stated |= {name: int(stated[name]) for name in ("parameters", "active_parameters") if stated[name] is not None}
    shape = replace(counted.shape, **{name: value for name, value in stated.items() if value is not None})
    width = counted.attention_width
    if model.attention_heads is not None and shape.head_dim is not None:
        width = model.attention_heads * shape.head_dim
    _refuse_contradictions(file, shape, width)
    return Counted(shape, width, model.hidden_size or counted.hidden_size or width)


def _parameters_of_config(file: PlanFile, name: str) -> Counted:
    path = Path(file.source.name).parent / name
    try:
        config = json.loads(read_regular(path))
        if not isinstance(config, dict):
            raise UncountableError(f"a {type(config).__name__} in {path}")
        return count_parameters(config, file.model.bytes_per_weight, file.model.bytes_per_kv)
    except (OSError, ValueError, RecursionError, UncountableError) as error:
        raise file.error(
            "model.config_json",
            found=str(error),
            expected="the config.json of a decoder that can be counted",
            next_step="Or remove it and give parameters, layers, attention_heads, kv_heads and head_dim.",
        ) from error


def _refuse_gaps(file: PlanFile) -> None:
    """Check that the plan describes the model completely if there is no config."""
    model = file.model
    needed = (*_DENSE, "kv_heads" if model.kv_latent_dim is None else "kv_latent_dim")
    for name in needed:
        if getattr(model, name) is None:
            raise file.error(f"model.{name}", found="no such key", expected=f"{', '.join(needed)}, or config_json")


def _refuse_contradictions(file: PlanFile, shape: ModelShape, attention_width: int) -> None:
    if file.model.kv_heads is not None and shape.kv_latent_dim is not None:
        expected = "one of them: a compressed KV cache has no heads"
        raise file.error("model.kv_heads", found="both kv_heads and kv_latent_dim", expected=expected)
    if (shape.kv_heads or 0) * (shape.head_dim or 0) > attention_width:
        expected = f"at most the model's {attention_width // (shape.head_dim or 1)} attention heads"
        raise file.error("model.kv_heads", found=str(shape.kv_heads), expected=expected)
    given = [name for name in _MIXTURE if getattr(shape, name) is not None]
    if given and len(given) < len(_MIXTURE):
        missing = next(name for name in _MIXTURE if name not in given)
        expected = f"all of {', '.join(_MIXTURE)} for a mixture of experts"
        raise file.error(f"model.{missing}", found="no such key", expected=expected)
    if (shape.active_parameters or 0) > (shape.parameters or 0):
        expected = f"at most the {shape.parameters:,} parameters of the model"
        raise file.error("model.active_parameters", found=f"{shape.active_parameters:,}", expected=expected)
    if (shape.experts_per_token or 0) > (shape.experts or 0):
        expected = f"at most the model's {shape.experts} experts"
        raise file.error("model.experts_per_token", found=str(shape.experts_per_token), expected=expected)


_STATED: Final = ("mean_tokens", "cv_ratio", "percentiles")
_ALL_NS: Final = 2**62
_MOST_GROUPS: Final = 2000
"""Number of groups, at the end of the run, that show how similar their members are."""


def planned_lengths(file: PlanFile) -> ObservedLengths:
    """Return the lengths as the plan states them or its run recorded them. Raises RlscopeError."""
    lengths = file.lengths
    if lengths.from_run is not None:
        return _recorded(file, lengths.from_run)
    if lengths.prompt_tokens is None:
        raise file.error("lengths.prompt_tokens", found="no such key", expected="prompt_tokens or from_run")
    return ObservedLengths(_stated(file), lengths.prompt_tokens)


def _recorded(file: PlanFile, name: str) -> ObservedLengths:
    lengths, folder = file.lengths, Path(file.source.name).parent / name
    also = next((key for key in _STATED if getattr(lengths, key) is not None), None)
    if also is not None:
        raise file.error(f"lengths.{also}", found=f"both from_run and {also}", expected="one of them")
    with open_run(folder) as run:
        try:
            seen = observe_lengths(_ask_lengths(run), run.config.max_output_tokens)
        except UnobservableError as error:
            found = f"nothing in {folder}: {error}"
            expected = "a run that recorded its samples"
            raise file.error("lengths.from_run", found=found, expected=expected) from error
    prompt_tokens = seen.prompt_tokens if lengths.prompt_tokens is None else lengths.prompt_tokens
    return ObservedLengths(_capped(file, seen.lengths), prompt_tokens)


def _ask_lengths(run: OpenRun) -> Mapping[str, pl.DataFrame]:
    window = steady_window(ask(run, "training_steps"))
    stretch = (0, _ALL_NS) if window is None else (window.start_ns, window.end_ns)
    arguments: dict[str, Argument] = {"from_ns": stretch[0], "to_ns": stretch[1], "most_groups": _MOST_GROUPS}
    return {name: ask(run, name, arguments) for name in ("length_counts", "group_members")}


def _capped(file: PlanFile, law: LengthLaw) -> LengthLaw:
    """Cut lengths at the plan's cap if it has one. Above the cap of the run, lengths are unknown."""
    max_output_tokens = file.lengths.max_output_tokens
    if max_output_tokens is None:
        return law
    if law.max_output_tokens is not None and law.capped_ratio and max_output_tokens > law.max_output_tokens:
        raise file.error(
            "lengths.max_output_tokens",
            found=f"{max_output_tokens:,}",
            expected=f"at most {law.max_output_tokens:,}, where the run cut responses: longer ones were not recorded",
        )
    return law.with_cap(max_output_tokens)


def _stated(file: PlanFile) -> LengthLaw:
    lengths = file.lengths
    if (lengths.mean_tokens is None) == (lengths.percentiles is None):
        found = "neither" if lengths.mean_tokens is None else "both"
        expected = "either mean_tokens with cv_ratio, or percentiles, or from_run"
        raise file.error("lengths.mean_tokens", found=found, expected=expected)
    try:
        if lengths.percentiles is not None:
            return law_of_percentiles(_per_cents(lengths.percentiles), lengths.max_output_tokens)
        if lengths.mean_tokens is None or lengths.cv_ratio is None:
            expected = "the spread of lengths: standard deviation over mean"
            raise file.error("lengths.cv_ratio", found="no such key", expected=expected)
        return law_of_mean(lengths.mean_tokens.median, lengths.cv_ratio, lengths.max_output_tokens)
    except ValueError as error:
        name = "mean_tokens" if lengths.percentiles is None else "percentiles"
        expected = "lengths that a lognormal distribution under the cap can have"
        raise file.error(f"lengths.{name}", found=str(error), expected=expected) from error


def _per_cents(percentiles: dict[str, float]) -> dict[float, float]:
    """Parse p50 or "p99.9" as 50 or 99.9. Raises ValueError."""
    if not all(name.startswith("p") for name in percentiles):
        raise ValueError(f"percentiles named {', '.join(percentiles)} and not p50, p90, ...")
    return {float(name.removeprefix("p")): tokens for name, tokens in percentiles.items()}


_PREFILL: Final = LogNormal(PREFILL_EFFICIENCY, 0.25)
"""Efficiency of prefill: 0.33 to 0.75 with 90% probability."""
_MEASURED_LOG_SD: Final = 0.1
"""Log deviation of a training rate that was measured elsewhere, on another batch with other lengths."""
_UPDATE_LOG_SD: Final = 0.3
"""Log deviation of a given time of a weight update."""
_OVERHEAD_LOG_SD: Final = 0.3
"""Log deviation of a given overhead of a pass."""


_TIMES_GPUS: Final = (16, 8, 4, 2)
_LEAST_EXPONENT: Final = 1.0 / 3.0
"""Twice the GPUs should gain 26%, and 16 times as many 152%: a smaller gain is not worth them (own reasoning)."""


def plan_ahead(path: Path, most_staleness: int | None = None) -> tuple[PlanFile, PlanResult]:
    """Read a plan and sweep its layouts; most_staleness overrides the plan's max_staleness. Raises RlscopeError."""
    file = read_plan(path)
    if most_staleness is not None:
        file = replace(file, limits=replace(file.limits, max_staleness=most_staleness))
    plan = plan_of(file)
    try:
        planned = plan_layouts(plan)
        return file, replace(planned, scaling=None if planned.best is None else _poor_scaling(file, plan))
    except UnplannableError as error:
        raise file.error("model", found=str(error), expected="a model that fits some layout of the GPUs") from error


def _poor_scaling(file: PlanFile, plan: PlanInputs) -> PoorScaling | None:
    """Smallest share of the GPUs from which using all of them gains too little; None if they gain enough."""
    whole = fastest_tokens_per_s(plan)
    for times in _TIMES_GPUS:
        fewer = plan.gpus // times
        if whole is None or not possible_layouts(fewer, plan.granularity, (1,)):
            continue
        training = plan.training
        if file.training.rate_at_gpus is None:
            training = replace(training, at_gpus=_half(file.gpus.gpus_per_trainer_replica, fewer))
        rate = fastest_tokens_per_s(replace(plan, gpus=fewer, training=training))
        if rate is None or whole / rate >= (plan.gpus / fewer) ** _LEAST_EXPONENT:
            continue
        samples = round(plan.workload.samples_per_step * plan.gpus / fewer)
        larger = fastest_tokens_per_s(replace(plan, workload=replace(plan.workload, samples_per_step=samples)))
        return PoorScaling(fewer, whole / rate - 1.0, samples, (larger or whole) / whole - 1.0)
    return None


def _half(replica_gpus: int, gpus: int) -> int:
    """Half of the GPUs in whole trainer replicas, at least one."""
    return max(replica_gpus, gpus // 2 // replica_gpus * replica_gpus)


def plan_of(file: PlanFile) -> PlanInputs:
    """Turn the plan into the model's input. Raises RlscopeError if its figures contradict each other."""
    device, decoder, workload = _device(file), decoder_of(file), _workload(file)
    gpus, granularity = file.gpus, _granularity(file)
    mean = file.lengths.mean_tokens
    return PlanInputs(
        gpus=gpus.total,
        granularity=granularity,
        device=device,
        shape=decoder.shape,
        workload=workload,
        lengths_from=file.lengths.from_run,
        lengths_log_sd=(mean.log_sd if mean is not None else None) or 0.0,
        decode=_decode(file),
        training=_training(file, decoder),
        update=_update(file, decoder.shape),
        admission=_admission(file),
        max_running=file.limits.max_running,
        kv_capacity_tokens=_kv_capacity_tokens(file, decoder.shape, device),
        # A cap that the run enforces costs throughput, and excludes no layout.
        most_staleness=file.limits.max_staleness if file.limits.staleness_policy == "by_layout" else None,
        present=_present(file),
    )


def _granularity(file: PlanFile) -> Granularity:
    gpus = file.gpus
    granularity = Granularity(gpus.gpus_per_engine, gpus.gpus_per_trainer_replica, gpus.gpus_per_node)
    if not possible_layouts(gpus.total, granularity, (1,)):
        replica = math.lcm(gpus.gpus_per_trainer_replica, gpus.gpus_per_node)
        engine = math.ceil(gpus.gpus_per_engine / gpus.gpus_per_node) * gpus.gpus_per_node
        raise file.error(
            "gpus.total",
            found=str(gpus.total),
            expected=f"at least {replica + engine}: a trainer replica and an engine, in whole nodes",
            next_step="Fewer GPUs can only run synchronously: do that, or plan with more of them.",
        )
    return granularity


_FIGURES: Final = {
    "peak_tflops": ("bf16_flop_per_s", 1e12),
    "bandwidth_tb_per_s": ("bandwidth_bytes_per_s", 1e12),
    "memory_gb": ("memory_bytes", 1e9),
}
"""Keys of a device's figures: the field of the device, and the unit."""


def _device(file: PlanFile) -> Device:
    gpus = file.gpus
    listed = None if gpus.device is None else _listed_device(gpus.device)
    missing = next((key for key in _FIGURES if getattr(gpus, key) is None), None)
    if listed is None and missing is not None:
        raise _unknown_device(file, missing)
    device = listed or Device(gpus.device or "a device of your own", 0.0, 0.0, 0.0, frozenset())
    given = {field: (getattr(gpus, key), unit) for key, (field, unit) in _FIGURES.items()}
    return replace(device, **{field: figure * unit for field, (figure, unit) in given.items() if figure is not None})


def _unknown_device(file: PlanFile, missing: str) -> RlscopeError:
    """Return the error for a device that is not in the table and lacks a figure."""
    name, known = file.gpus.device, tuple(device.name for device in DEVICES)
    if name is None:
        expected = f"device, or all of {', '.join(_FIGURES)}"
        return file.error(f"gpus.{missing}", found="no such key", expected=expected)
    steps = (did_you_mean(name, known), f"For another device give {', '.join(_FIGURES)} too.")
    return file.error(
        "gpus.device",
        found=f"unknown device {name!r}",
        expected=f"one of {', '.join(known)}",
        next_step=" ".join(filter(None, steps)),
    )


def _listed_device(name: str) -> Device | None:
    """Find a device by its name in the table, or by the driver's name."""
    exact = (device for device in DEVICES if device.name.casefold() == name.casefold())
    return next(exact, None) or find_device(name)


def _workload(file: PlanFile) -> Workload:
    batch = file.batch
    if batch.group_size > batch.samples_per_step:
        raise file.error(
            "batch.group_size",
            found=str(batch.group_size),
            expected=f"at most samples_per_step, {batch.samples_per_step}",
            next_step="A step trains on whole groups.",
        )
    lengths = planned_lengths(file)
    return Workload(
        lengths=lengths.lengths,
        prompt_tokens=lengths.prompt_tokens,
        group_size=batch.group_size,
        samples_per_step=batch.samples_per_step,
        trained_prompt_tokens=lengths.prompt_tokens if file.training.count_prompts else 0.0,
        kept_ratio=batch.kept_ratio,
        environment_s=file.environment.wait_s,
    )


def _decode(file: PlanFile) -> DecodeGuess:
    given, overhead = file.efficiency, file.efficiency.pass_overhead_s
    weights = given.weight_bandwidth_ratio or Guess(USUAL_SHARES.weight_bandwidth_ratio)
    compute = given.compute_ratio or Guess(USUAL_SHARES.compute_ratio)
    kv = given.kv_bandwidth_ratio or Guess(USUAL_SHARES.kv_bandwidth_ratio)
    return DecodeGuess(
        *(weights.median, weights.log_sd),
        *(compute.median, compute.log_sd),
        *(kv.median, kv.log_sd),
        overhead_s=None if overhead is None else _given(overhead, _OVERHEAD_LOG_SD),
        prefill_ratio=_log_normal(given.prefill_ratio, _PREFILL),
    )


def _training(file: PlanFile, decoder: Counted) -> TrainingGuess:
    given, gpus, shape = file.training, file.gpus, decoder.shape
    rate, exponent, sd = given.tokens_per_gpu_s, given.scaling_exponent, given.scaling_exponent_sd
    state_bytes = given.state_bytes_per_parameter
    return TrainingGuess(
        mfu_ratio=_log_normal(given.mfu_ratio, LIKELY_MFU),
        tokens_per_gpu_s=None if rate is None else _given(rate, _MEASURED_LOG_SD),
        model=TrainedModel(
            active_parameters=float(shape.parameters_per_token or 0),
            layers=shape.layers or 0,
            attention_width=decoder.attention_width,
            recomputes_activations=given.recompute_activations,
            extra_forward_passes=given.extra_forward_passes,
        ),
        routing_s_per_token=None if given.mfu_ratio is not None else _routing(decoder),
        at_gpus=given.rate_at_gpus or _half(gpus.gpus_per_trainer_replica, gpus.total),
        scaling_exponent=PRIOR_EXPONENT if exponent is None else exponent,
        scaling_exponent_sd=PRIOR_EXPONENT_SD if sd is None else sd,
        overhead_s=given.step_overhead_s,
        state_bytes=(MASTER_STATE_BYTES if state_bytes is None else state_bytes) * (shape.parameters or 0),
    )


def _routing(decoder: Counted) -> LogNormal | None:
    shape = decoder.shape
    if not shape.layers or not shape.experts_per_token:
        return None
    seconds = expert_routing_s_per_token(shape.layers, shape.experts_per_token, decoder.hidden_size)
    return LogNormal(seconds, LIKELY_ROUTING_LOG_SD)


def _log_normal(guess: Guess | None, usual: LogNormal) -> LogNormal:
    """Return the plan's number, or the default one."""
    return usual if guess is None else _given(guess, usual.log_sd)


def _given(guess: Guess, log_sd: float) -> LogNormal:
    """Return the plan's number with its own spread, or with the default spread."""
    return LogNormal(guess.median, log_sd if guess.log_sd is None else guess.log_sd)


def _update(file: PlanFile, shape: ModelShape) -> UpdateGuess:
    given = file.weights
    stated, size_bytes = given.weight_update_s, shape.weight_bytes or 0.0
    law = usual_update_s(size_bytes) if stated is None else _given(stated, _UPDATE_LOG_SD)
    seconds = law if law.median else None
    return UpdateGuess(seconds, stated is not None, given.pauses_engines, given.blocks_trainer, given.kv_kept)


def _admission(file: PlanFile) -> Admission:
    limits, batch = file.limits, file.batch
    kept = limits.staleness_policy
    if kept != "by_layout" and limits.max_staleness is None:
        raise file.error(
            "limits.staleness_policy",
            found=f"{kept!r} and no max_staleness",
            expected="max_staleness too, the cap to enforce",
        )
    whole = math.ceil(batch.samples_per_step / batch.group_size) * batch.group_size
    queue = limits.queue_capacity_samples
    if queue is None and kept == "by_layout":
        queue = whole
    for name, limit in (("queue_capacity_samples", queue), ("max_in_flight_samples", limits.max_in_flight_samples)):
        if limit is not None and limit < whole:
            expected = f"at least {whole}, the whole groups of a step"
            raise file.error(f"limits.{name}", found=str(limit), expected=expected)
    cap = None if kept == "by_layout" else limits.max_staleness
    # With a cap of 0, there is nothing that publications could wait for.
    policy = "admission" if kept == "by_layout" or (kept == "publication_waits" and not cap) else kept
    return Admission(queue, "wait", cap, limits.max_in_flight_samples, staleness_policy=policy)


def _kv_capacity_tokens(file: PlanFile, shape: ModelShape, device: Device) -> float:
    """Return the given capacity, or the memory that the weights leave. Raises RlscopeError if they do not fit."""
    if file.limits.kv_capacity_tokens is not None:
        return file.limits.kv_capacity_tokens
    ratio, gpus = file.efficiency.memory_ratio, file.gpus.gpus_per_engine

    def capacity(engine_gpus: int) -> int | None:
        return capacity_from_device(shape, device.memory_bytes, engine_gpus, memory_ratio=ratio)

    tokens = capacity(gpus)
    if tokens is not None:
        return float(tokens)
    if not shape.kv_bytes_per_token(gpus):
        expected = "the engine's KV capacity: the KV cache of this model cannot be computed from its layers"
        raise file.error("limits.kv_capacity_tokens", found="no such key", expected=expected)
    fits = next((more for more in range(gpus + 1, file.gpus.total) if capacity(more)), None)
    weights_gb, memory_gb = (shape.weight_bytes or 0.0) / 1e9, gpus * device.memory_bytes / 1e9
    more = "more than the plan has" if fits is None else f"at least {fits}"
    raise file.error(
        "gpus.gpus_per_engine",
        found=f"{gpus}, whose {memory_gb:,.0f} GB do not hold {weights_gb:,.0f} GB of weights and a KV cache",
        expected=f"{more} GPUs of {device.name} for an engine",
        next_step="Use more GPUs per engine, fewer bytes_per_weight, or a device with more memory.",
    )


def _present(file: PlanFile) -> Layout | None:
    given, gpus = file.current, file.gpus
    if given is None:
        return None
    if given.trainer_gpus + given.sampler_gpus > gpus.total:
        found = f"{given.trainer_gpus} and {given.sampler_gpus} GPUs"
        expected = f"at most gpus.total, {gpus.total}"
        raise file.error("current.trainer_gpus", found=found, expected=expected)
    if given.sampler_gpus % gpus.gpus_per_engine:
        expected = f"a multiple of gpus_per_engine, {gpus.gpus_per_engine}"
        raise file.error("current.sampler_gpus", found=str(given.sampler_gpus), expected=expected)
    return Layout(given.trainer_gpus, given.sampler_gpus, given.max_running)
