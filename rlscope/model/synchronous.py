"""The step of a synchronous run: generate all samples, then train on them; the sides take turns.

Either all GPUs do both, or each side has its own and idles while the other works. Not covered: over-provisioning and
aborting of stragglers, moving weights between the phases of one GPU (give it as a trainer phase), and engines that
differ: the spread between engines makes a real step a little longer.
"""

from dataclasses import dataclass

from rlscope.model.drain import Batch, Horizon, drain_s, largest_batch
from rlscope.model.sampler_period import sampling_of
from rlscope.model.system import Layout, System
from rlscope.model.trainer_step import trainer_step


@dataclass(frozen=True, slots=True)
class SynchronousStep:
    """One step; its parts add up."""

    step_s: float
    generation_s: float
    """Decode passes of the engines, from the first to the last."""
    prefill_s: float
    environment_s: float
    """Counted once: the wait of the sample that ends the step."""
    train_s: float
    update_s: float
    trained_tokens_per_s: float
    """Response tokens."""
    running: float
    """Requests in an engine's batch at the start."""
    in_waves: bool
    """Not all requests run from the start."""


def colocated_step(
    system: System, gpus: int, running_per_engine: int | None = None, horizon: Horizon = "expected_longest"
) -> SynchronousStep | None:
    """The step when all GPUs generate and then all train; None when no engine fits. No limit: the engine's own."""
    limit = system.engine.max_running if running_per_engine is None else running_per_engine
    return split_step(system, Layout(gpus, gpus, limit), horizon)


def split_step(system: System, layout: Layout, horizon: Horizon = "expected_longest") -> SynchronousStep | None:
    """The step when each side has its own GPUs; None when the layout has no trainer, no engine or no place.

    Generation is the sum over passes of a drain, with all requests of an engine started at once where they fit.
    """
    engines = layout.sampler_gpus // system.engine.gpus
    limit = _running_limit(system, layout)
    if engines < 1 or layout.trainer_gpus < 1 or limit < 1.0:
        return None
    workload, update, sampling = system.workload, system.update, sampling_of(system)
    samples = sampling.samples_per_step / engines
    batch = Batch(samples, limit, sampling.samples_per_step, workload.prompt_tokens)
    trainers = trainer_step(system.trainer, workload, update, float(layout.trainer_gpus))
    parts_s = (
        drain_s(system.engine.curve, workload.lengths, batch, horizon),
        samples * float(sampling.prefill_s(min(samples, limit))),
        workload.environment_s,
        float(trainers.work_s),
        max(update.trainer_blocked_s, update.delay_s + update.engine_pause_s),
    )
    step_s = sum(parts_s)
    tokens_per_s = workload.samples_per_step * sampling.mean_tokens / step_s
    return SynchronousStep(step_s, *parts_s, tokens_per_s, min(samples, limit), samples > limit)


def _running_limit(system: System, layout: Layout) -> float:
    engine, workload = system.engine, system.workload
    limit = float(min(layout.running_per_engine, engine.max_running))
    if engine.kv_capacity_tokens is None:
        return limit
    return min(limit, largest_batch(workload.lengths, workload.prompt_tokens, engine.kv_capacity_tokens))
