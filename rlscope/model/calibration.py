"""From what a stretch of a run shows to the system that the model works with: one best estimate, and alternatives.

What a run does not show is left at what it was: engines that are alike, prompts and lengths as they are. A draw holds
one decode curve, one trainer and one scaling of trainers; lengths and update costs are the same in all of them, since
their error is small beside those. Not covered: engines that differ, and runs whose trainers are also samplers.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

import numpy as np

from rlscope.model.decode_curve import ExpertHitCurve, Form, PNormCurve, SigmoidCurve, SoftplusCurve
from rlscope.model.decode_fit import CurveFit, fit_decode_curve
from rlscope.model.decode_prior import HardwarePrior
from rlscope.model.observed import Observed
from rlscope.model.other_run import OtherRun
from rlscope.model.pass_points import decode_points, prefill_points
from rlscope.model.prefill_cost import curve_seconds, prefill_cost
from rlscope.model.sampler_limits import CapRule
from rlscope.model.system import (
    Admission,
    DecodeCurve,
    Engine,
    Layout,
    System,
    Trainer,
    TrainerPhase,
    WeightUpdate,
    Workload,
)
from rlscope.model.training_rate import TrainingRate, fit_training_rate

Note = Literal["limit_below_setting", "unattributed_engine_time", "prefill_not_recorded", "unattributed_trainer_time"]
"""What was assumed. limit_below_setting: the most requests that ran are fewer than the setting allows, and are taken
as today's limit; unattributed_engine_time: too much of it to be host time, so it is left out; prefill_not_recorded:
prompts are taken as free; unattributed_trainer_time: so much of a step is unexplained that waits may hide in it."""

DRAWS: Final = 200
"""Enough that the 5 % and 95 % quantiles stand on ten draws each."""
_HOST_TIME_RATIO: Final = 0.10
"""Unattributed time of an engine up to this share is taken for time between passes; more may be anything."""
_LIMIT_QUANTILE: Final = 0.999
"""Of the running requests over passes: the most that ran, without the few passes of an accident."""
_UNBOUNDED: Final = 1_000_000
"""An engine's own limit, where the layout's limit is the one that is varied."""

_Curve = PNormCurve | SoftplusCurve | SigmoidCurve | ExpertHitCurve


class UncalibratableError(Exception):
    """The stretch does not hold enough to fit a part of the model. The message says which."""


@dataclass(frozen=True, slots=True, eq=False)
class Calibration:
    """A run as the model sees it."""

    system: System
    draws: tuple[System, ...]
    """Systems that the run leaves possible, equally likely."""
    layout: Layout
    """The run's own."""
    synchronous: bool
    """Whether the run works by turns: every trained token is of the newest version."""
    steps: int
    """Optimizer steps of the stretch."""
    steps_per_version: float
    """Optimizer steps of one publication, as the model has it."""
    cap_rule: CapRule
    """How the run keeps its staleness cap."""
    curve: CurveFit
    training: TrainingRate
    notes: tuple[Note, ...]
    level_log_sd: float = 0.0
    """Log deviation that the rates of all layouts share, besides what the draws leave open."""


def calibrate(
    observed: Observed,
    admission: Admission,
    prior: HardwarePrior | None,
    rng: np.random.Generator,
    *,
    publishes_every_step: bool = False,
    form: Form | None = None,
    batches_ahead: float = 0.0,
    others: Sequence[OtherRun] = (),
) -> Calibration:
    """Fit the parts of the model to the stretch. Raises UncalibratableError, with what is missing.

    publishes_every_step: each optimizer step is meant to publish, and those that did not were held back by the cap.
    batches_ahead: of an optimizer step, that the trainers hold besides the one they train on.
    others: runs of the same model that say how training scales.
    """
    points, prefills = decode_points(observed.passes), prefill_points(observed.passes)
    fit = fit_decode_curve(points, prior, rng, form=form, draw_count=DRAWS, prefills=prefills)
    if fit is None:
        raise UncalibratableError("no pass that only decodes was recorded: what a decode pass costs is unknown")
    training = _training(observed, others, rng)
    versions = observed.steps.period_s.size if publishes_every_step else _publications(observed)
    phases, steps_per_version = _phases(observed, versions), observed.steps.period_s.size / versions
    limit = _running_limit(observed)
    workload = replace(_workload(observed, versions), batches_ahead=batches_ahead / steps_per_version)
    update = _update(observed)
    curves = (fit.curve, *fit.draws)
    trainers = (training.trainer(phases), *training.trainer_draws(phases))
    systems = [
        System(workload, engine_of(observed, curve), _per_version(trainer, steps_per_version), update, admission)
        for curve, trainer in zip(curves, trainers, strict=True)
    ]
    return Calibration(
        system=systems[0],
        draws=tuple(systems[1:]),
        layout=Layout(observed.trainer_gpus, observed.engines * observed.gpus_per_engine, limit),
        synchronous=_is_synchronous(observed),
        steps=observed.steps.period_s.size,
        steps_per_version=steps_per_version,
        cap_rule="publication_waits" if publishes_every_step else "admission",
        curve=fit,
        training=training,
        notes=_notes(observed, limit),
    )


def _is_synchronous(observed: Observed) -> bool:
    return bool(observed.staleness) and all(staleness <= 0 for staleness, _ in observed.staleness)


def engine_of(observed: Observed, curve: DecodeCurve) -> Engine:
    """An engine whose passes take, over the stretch, the time that they took: the curve settles only their shape."""
    host_s = _host_s(observed, curve)
    prefill = prefill_cost(observed, curve, host_s)
    return Engine(
        gpus=observed.gpus_per_engine,
        curve=_with_overhead(curve, host_s),
        max_running=_UNBOUNDED,
        kv_capacity_tokens=observed.kv_capacity_tokens,
        prefill_tokens_per_s=prefill.tokens_per_s,
        prefill_pass_s=prefill.pass_s,
    )


def _host_s(observed: Observed, curve: DecodeCurve) -> float:
    """Seconds per pass besides the curve's: between passes, and what decode-only passes took over the curve."""
    passes = observed.passes
    clean = (passes.decode_tokens > 0) & ~passes.prefills
    over_s = float((passes.busy_s - curve_seconds(passes, curve))[clean].sum()) if clean.any() else 0.0
    over_s = over_s / float(passes.passes[clean].sum()) if clean.any() else 0.0
    between_s = float(passes.between_s.sum())
    if _unattributed_ratio(observed) <= _HOST_TIME_RATIO:
        between_s += observed.engine_state_s.get(("unattributed", None), 0.0)
    return over_s + between_s / float(passes.passes.sum())


def _with_overhead(curve: DecodeCurve, more_s: float) -> DecodeCurve:
    if not isinstance(curve, _Curve):
        raise TypeError(f"a fit gave a {type(curve).__name__}, which has no overhead to set")
    least_s = float(curve.pass_s(1.0)) - curve.overhead_s
    return replace(curve, overhead_s=max(curve.overhead_s + more_s, -0.9 * least_s))


def _workload(observed: Observed, versions: int) -> Workload:
    steps, delivered = observed.steps, observed.delivered
    samples = float(steps.samples.sum())
    finished_per_s = observed.finished_samples / observed.seconds
    return Workload(
        lengths=observed.lengths,
        prompt_tokens=observed.prompt_tokens,
        group_size=observed.group_size,
        samples_per_step=max(1, round(samples / versions)),
        trained_prompt_tokens=max(0.0, float(steps.tokens.sum() - steps.response_tokens.sum()) / samples),
        kept_ratio=delivered.trained_tokens / max(1, delivered.trained_tokens + delivered.filtered_tokens),
        environment_s=observed.environment_samples / finished_per_s if finished_per_s else 0.0,
        environment_waits_s=observed.environment_waits_s,
    )


def _update(observed: Observed) -> WeightUpdate:
    """What one publication costs; where the cap skips some, those that were made."""
    blocked_s = float(observed.steps.publish_s.sum()) / _publications(observed)
    pause_s = observed.apply_s or 0.0
    return WeightUpdate(
        engine_pause_s=pause_s,
        trainer_blocked_s=blocked_s,
        delay_s=max(0.0, (observed.update_delay_s or 0.0) - pause_s),
        kv_kept=observed.kv_kept,
    )


def _training(observed: Observed, others: Sequence[OtherRun], rng: np.random.Generator) -> TrainingRate:
    steps, trained = observed.steps, observed.steps.trained
    if not trained.any():
        raise UncalibratableError("no step in the stretch says how many tokens it trained on, and for how long")
    tokens, seconds = steps.tokens[trained], steps.train_s[trained]
    elsewhere = [each.elsewhere for each in others]
    return fit_training_rate(tokens, seconds, observed.trainer_gpus, rng, DRAWS, elsewhere)


def _phases(observed: Observed, publications: int) -> tuple[TrainerPhase, ...]:
    """Seconds per publication, which may take several optimizer steps."""
    steps = observed.steps
    phases = (
        TrainerPhase("log-probabilities", float(steps.logprobs_s.sum()) / publications, shrinks_with_gpus=True),
        TrainerPhase("checkpoints and evaluation", float(steps.other_s.sum()) / publications, shrinks_with_gpus=False),
        TrainerPhase("between steps", _between_s(observed) / publications, shrinks_with_gpus=False),
    )
    return tuple(phase for phase in phases if phase.step_s > 0.0)


def _per_version(trainer: Trainer, steps_per_version: float) -> Trainer:
    """The overhead of as many optimizer steps as a version takes."""
    return replace(trainer, overhead_s=trainer.overhead_s * steps_per_version)


def _between_s(observed: Observed) -> float:
    """Seconds of the trainers in no recorded phase, over all steps."""
    steps = observed.steps
    known_s = steps.train_s + steps.logprobs_s + steps.publish_s + steps.other_s + steps.wait_s
    return max(0.0, float((steps.period_s - known_s).sum()))


def _publications(observed: Observed) -> int:
    published = int(observed.steps.published.sum())
    if not published:
        raise UncalibratableError("no policy version was published in the stretch")
    return published


def _running_limit(observed: Observed) -> int:
    """Today's limit: the setting, or the most that ran where that is less. Samples that are away hold a place too."""
    passes = observed.passes
    order = np.argsort(passes.running)
    below = np.cumsum(passes.passes[order]) / passes.passes.sum()
    seen = int(passes.running[order][np.searchsorted(below, _LIMIT_QUANTILE)])
    away = math.ceil(observed.environment_samples / observed.engines)
    return max(1, min(seen + away, observed.max_running or seen + away))


def _unattributed_ratio(observed: Observed) -> float:
    return observed.engine_state_s.get(("unattributed", None), 0.0) / (observed.engines * observed.seconds)


def _notes(observed: Observed, limit: int) -> tuple[Note, ...]:
    known: Sequence[tuple[Note, bool]] = (
        ("limit_below_setting", limit < (observed.max_running or 0)),
        ("unattributed_engine_time", _unattributed_ratio(observed) > _HOST_TIME_RATIO),
        ("prefill_not_recorded", not bool(observed.passes.prefills.any())),
        ("unattributed_trainer_time", _between_s(observed) > _HOST_TIME_RATIO * float(observed.steps.period_s.sum())),
    )
    return tuple(note for note, holds in known if holds)
