"""Apply the change of a what-if to a system, without solving it.

Each change is one premise: everything else stays as in the run. If the run says little about a premise, a
`ModelWarning` says so. Not covered: prompts, and how the time of an update grows with the number of engines.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from rlscope.model.lengths import LengthLaw
from rlscope.model.policies import StalenessPolicy
from rlscope.model.system import (
    CHECKPOINTS_PHASE,
    Admission,
    System,
    TrainerPhase,
    WeightUpdateCost,
    Workload,
)
from rlscope.model.warnings import ModelWarning

NO_LIMIT: Final = 0
"""Value that removes a limit on the queue or on samples in flight, like 0 in Python's own queues."""


@dataclass(frozen=True, slots=True)
class Change:
    """Changes to a run; None leaves a quantity unchanged."""

    trainer_gpus: int | None = None
    """Trainer GPUs."""
    sampler_gpus: int | None = None
    """Sampler GPUs."""
    total_gpus: int | None = None
    """Total of both sides."""
    target_tokens_per_s: float | None = None
    """Trained response tokens per second to reach with as few GPUs as possible. Excludes the numbers of GPUs."""
    max_running: int | None = None
    """Limit on running requests."""
    max_staleness: int | None = None
    """Cap on the staleness of samples, in versions."""
    length_factor: float | None = None
    """Factor on the length of every response, up to the cap."""
    max_output_tokens: int | None = None
    """Longest response, in tokens."""
    samples_per_step: int | None = None
    """Samples per optimizer step."""
    trainer_speed: float | None = None
    """With 2, the forward and backward passes of a step and its log-probabilities take half as long."""
    engine_speed: float | None = None
    """With 2, decode passes, the gaps between them and prefills take half as long."""
    weight_update_s: float | None = None
    """Seconds from the end of a step until both sides continue; the parts keep their proportions."""
    queue_capacity_samples: int | None = None
    """NO_LIMIT removes the limit."""
    max_in_flight_samples: int | None = None
    """Cap on running and queued samples together; NO_LIMIT removes it."""
    publish_every: int | None = None
    """Optimizer steps per publication."""
    added_checkpoint_s: float | None = None
    """Seconds per optimizer step added to saving and evaluation by the trainers; below 0: removed."""


def applied(
    change: Change, before: Workload, steps_per_version: float, new_cap_policy: StalenessPolicy
) -> Callable[[System], System]:
    """Return the function that applies a change to a system; systems with one workload also share the changed one.

    before: workload of the systems. steps_per_version: of the run. new_cap_policy: how a staleness cap is kept that the
    change sets and the run lacks.
    """
    workload, asked_s = changed_workload(before, change, steps_per_version), change.weight_update_s
    added_s = (change.added_checkpoint_s or 0.0) * steps_per_version
    steps_ratio = (change.publish_every or steps_per_version) / steps_per_version
    step_ratio = _version_tokens(workload) / _version_tokens(before) / steps_ratio

    def changed(system: System) -> System:
        """Change a system; only its limits, its workload and the times of its parts differ."""
        system = with_engine_speed(_of_larger_steps(system, step_ratio), change.engine_speed or 1.0)
        system = with_trainer_speed(system, change.trainer_speed or 1.0)
        system = _of_more_steps(with_checkpoints(system, added_s), steps_ratio)
        return replace(
            system,
            workload=workload,
            update=system.update if asked_s is None else timed_update(system.update, asked_s),
            admission=_admission(system.admission, change, new_cap_policy),
        )

    return changed


def changed_workload(workload: Workload, change: Change, steps_per_version: float) -> Workload:
    """Change lengths, their cap and the samples per publication.

    Added steps of a version take their batches one by one.
    """
    ratio = (change.publish_every or steps_per_version) / steps_per_version
    samples = workload.samples_per_step * ratio
    if change.samples_per_step is not None:
        samples = change.samples_per_step * steps_per_version * ratio
    return replace(
        workload,
        lengths=_lengths(workload.lengths, change),
        samples_per_step=max(1, round(samples)),
        batches_per_version=max(1, round(workload.batches_per_version * ratio)),
        prefetched_batches=workload.prefetched_batches / ratio,
    )


def _of_more_steps(system: System, ratio: float) -> System:
    """Scale the seconds of a version to more optimizer steps by a factor; each step takes as long as before."""
    trainer = system.trainer
    phases = tuple(
        replace(phase, step_s=phase.step_s * ratio, every_steps=max(1, round(phase.every_steps / ratio)))
        for phase in trainer.phases
    )
    return replace(system, trainer=replace(trainer, overhead_s=trainer.overhead_s * ratio, phases=phases))


def _version_tokens(workload: Workload) -> float:
    return workload.samples_per_step * workload.lengths.mean_tokens


def _of_larger_steps(system: System, ratio: float) -> System:
    """Spread the engines' other work over steps of more tokens by a factor: an evaluation comes after some steps."""
    curve = system.engine.curve
    curve = replace(curve, other_s_per_request=curve.other_s_per_request / ratio)
    return replace(system, engine=replace(system.engine, curve=curve))


def with_engine_speed(system: System, speed: float) -> System:
    """Speed up decode passes and prefills by a factor."""
    if speed == 1.0:
        return system
    engine, rate_per_s = system.engine, system.engine.prefill_tokens_per_s
    faster = replace(
        engine,
        curve=engine.curve.sped_up(speed),
        prefill_tokens_per_s=None if rate_per_s is None else rate_per_s * speed,
        prefill_pass_s=engine.prefill_pass_s / speed,
    )
    return replace(system, engine=faster)


def with_trainer_speed(system: System, speed: float) -> System:
    """Speed up passes, their overhead and log-probabilities by a factor; checkpoints and pauses stay unchanged."""
    trainer = system.trainer

    def sped_up(phase: TrainerPhase) -> TrainerPhase:
        return replace(phase, step_s=phase.step_s / speed) if phase.shrinks_with_gpus else phase

    faster = replace(
        trainer,
        tokens_per_gpu_s=trainer.tokens_per_gpu_s * speed,
        overhead_s=trainer.overhead_s / speed,
        phases=tuple(map(sped_up, trainer.phases)),
    )
    return replace(system, trainer=faster)


def with_checkpoints(system: System, added_s: float) -> System:
    """Lengthen checkpoints and evaluation of a version by `added_s` seconds, down to 0 if negative."""
    if not added_s:
        return system
    phases = system.trainer.phases
    none = TrainerPhase(CHECKPOINTS_PHASE, 0.0, shrinks_with_gpus=False)
    own = next((phase for phase in phases if phase.name == CHECKPOINTS_PHASE), none)
    others = tuple(phase for phase in phases if phase.name != CHECKPOINTS_PHASE)
    changed = replace(own, step_s=max(0.0, own.step_s + added_s))
    kept = (*others, changed) if changed.step_s > 0.0 else others
    return replace(system, trainer=replace(system.trainer, phases=kept))


def with_limits(system: System, **limits: object) -> System:
    """Replace limits of the admission."""
    return replace(system, admission=replace(system.admission, **limits))


def timed_update(update: WeightUpdateCost, asked_s: float) -> WeightUpdateCost:
    """Make an update take so many seconds; if the run shows no update cost, both sides pause for it."""
    if not update.seconds:
        return replace(update, engine_pause_s=asked_s, trainer_blocked_s=asked_s)
    parts, factor = ("engine_pause_s", "trainer_blocked_s", "delay_s"), asked_s / update.seconds
    return replace(update, **{name: getattr(update, name) * factor for name in parts})


def warnings_of(
    change: Change,
    system: System,
    trainer_gpus: int | None,
    new_cap_policy: StalenessPolicy,
    *,
    flat_steps: bool = False,
) -> tuple[ModelWarning, ...]:
    """Return a warning for each premise of the change that the run does not show.

    trainer_gpus: of the changed layout; None if the run shows how training scales. flat_steps: whether the time of its
    steps hardly grows with their tokens.
    """
    sets_tokens = (change.samples_per_step, change.length_factor, change.max_output_tokens) != (None, None, None)
    sets_cap = change.max_staleness is not None and system.admission.max_staleness is None
    found: Mapping[ModelWarning, Callable[[], bool]] = {
        ModelWarning.CUT_LENGTHS: lambda: _cuts_matter(system.workload.lengths, change),
        ModelWarning.FLAT_STEPS: lambda: flat_steps and sets_tokens,
        ModelWarning.UPDATES_NOT_SEEN: lambda: bool(change.weight_update_s) and not system.update.seconds,
        ModelWarning.CAP_BY_ADMISSION: lambda: sets_cap and new_cap_policy != "drop",
        ModelWarning.TRAINING_SCALING: lambda: trainer_gpus not in (None, system.trainer.seen_gpus),
    }
    return tuple(warning for warning, holds in found.items() if holds())


def _cuts_matter(lengths: LengthLaw, change: Change) -> bool:
    """Whether samples whose end was never seen would now end elsewhere than at the cap."""
    is_asked = change.length_factor is not None or change.max_output_tokens is not None
    if not is_asked or not (lengths.capped_ratio or lengths.unseen_ratio):
        return False
    cap = lengths.max_output_tokens if change.max_output_tokens is None else change.max_output_tokens
    return cap is None or lengths.max_tokens * (change.length_factor or 1.0) < cap


def _lengths(lengths: LengthLaw, change: Change) -> LengthLaw:
    """Scale lengths, then cut them: the old cap applies unless the change sets another."""
    if change.length_factor is None and change.max_output_tokens is None:
        return lengths
    cap = lengths.max_output_tokens if change.max_output_tokens is None else change.max_output_tokens
    uncut = replace(lengths, max_output_tokens=None).scaled(change.length_factor or 1.0)
    return uncut if cap is None else uncut.with_cap(cap)


def _admission(admission: Admission, change: Change, new_cap_policy: StalenessPolicy) -> Admission:
    """Apply the change to the limits.

    A run without a staleness cap keeps a new one as `new_cap_policy` says, and then drops nothing from a full queue. A
    queue without a capacity has nothing to drop.
    """
    if change.max_staleness is not None and admission.max_staleness is None:
        admission = replace(admission, queue_policy="wait", staleness_policy=new_cap_policy)
    if change.max_staleness is not None:
        admission = replace(admission, max_staleness=change.max_staleness)
    if change.queue_capacity_samples == NO_LIMIT:
        admission = replace(admission, queue_policy="wait")
    return replace(
        admission,
        queue_capacity_samples=_limit(admission.queue_capacity_samples, change.queue_capacity_samples),
        max_in_flight_samples=_limit(admission.max_in_flight_samples, change.max_in_flight_samples),
    )


def _limit(today: int | None, asked: int | None) -> int | None:
    if asked is None:
        return today
    return None if asked == NO_LIMIT else asked
