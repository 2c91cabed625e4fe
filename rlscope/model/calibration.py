"""Calibrate the system that the model solves to the steady state of a run: one best estimate, and draws.

A draw has its own decode curve, trainer and training scaling. Lengths and update costs are the same in all draws: their
error is small in comparison. Anything that the run does not show stays as it was. Not covered: engines that differ,
trainers that are also samplers, and the behavior of a prefix cache under other settings.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from rlscope.model.arrays import Reals
from rlscope.model.decode.curves import Form
from rlscope.model.decode.fit import CurveFit, fit_decode_curve
from rlscope.model.decode.measurements import NO_POINTS, decode_points, prefill_points
from rlscope.model.decode.prior import HardwarePrior
from rlscope.model.engine_cost import HOST_TIME_RATIO, engine_of, tokens_per_pass
from rlscope.model.engine_speeds import evened_passes, unequal_engines
from rlscope.model.observed import Observed, OtherRun
from rlscope.model.policies import Delivery
from rlscope.model.simulate.settings import DEFAULTS, Settings
from rlscope.model.system import (
    CHECKPOINTS_PHASE,
    Admission,
    Layout,
    System,
    Trainer,
    TrainerPhase,
    WeightUpdateCost,
    Workload,
)
from rlscope.model.training.scaling import TrainingRate, fit_training_rate
from rlscope.model.update_slowdown import slowdown_during_updates, without_slowdown
from rlscope.model.warnings import ModelWarning

DRAWS: Final = 200
"""Number of draws: ten lie beyond each of the 5% and 95% quantiles."""
_EVENED_ROUNDS: Final = 3
"""Rounds of fitting the curve and the engines' own factors in turn: factors then move by less than 0.5%."""
_LIMIT_QUANTILE: Final = 0.999
"""Quantile of running requests over passes: the maximum that ran, excluding a few outlier passes."""


class UncalibratableError(Exception):
    """The steady state does not hold enough to fit a part of the model. The message names that part."""


@dataclass(frozen=True, slots=True, eq=False)
class Calibration:
    """A run as the model represents it."""

    system: System
    draws: tuple[System, ...]
    """Equally likely posterior draws of the system."""
    layout: Layout
    """Layout of the run."""
    synchronous: bool
    """Whether the run is synchronous: every trained token has the newest version."""
    steps: int
    """Optimizer steps of the steady state."""
    steps_per_version: float
    """Optimizer steps per publication, as modeled."""
    curve: CurveFit
    training: TrainingRate
    warnings: tuple[ModelWarning, ...]
    """Assumptions of the calibration."""
    settings: Settings = DEFAULTS
    """Scheduling of rollouts in a simulation."""
    level_log_sd: float = 0.0
    """Log deviation that the rates of all layouts share, besides the uncertainty in the draws."""
    error_ratio: float = 1.0
    """Error of the model itself in a gain, over the usual one."""
    most_samples_per_s: float = math.inf
    """Samples per second that judges and reward models score at most."""
    engine_slowness: tuple[float, ...] | None = None
    """Time factor of each of the run's engines, by engine number, if some are much slower than others; None if all are
    alike. The closed forms know only the mean engine of the run."""


def calibrate(
    observed: Observed,
    admission: Admission,
    prior: HardwarePrior | None,
    rng: np.random.Generator,
    *,
    form: Form | None = None,
    prefetched_batches: float = 0.0,
    delivery: Delivery = "group",
    others: Sequence[OtherRun] = (),
    draw_count: int | None = None,
) -> Calibration:
    """Fit the parts of the model to the steady state.

    prefetched_batches: batches of an optimizer step that the trainers hold besides the one they train on. delivery:
    unit that is queued. others: runs of the same model that show how training scales. draw_count: posterior draws of
    the system; None: DRAWS. Raises UncalibratableError, which names the missing data.
    """
    draw_count, steps_per_version = draw_count or DRAWS, _steps_per_version(observed, admission)
    fit, slowness, observed = _decode_curves(observed, prior, rng, form, draw_count)
    training = _training(observed, others, rng, draw_count)
    workload = _workload(observed, steps_per_version, prefetched_batches / steps_per_version, delivery)
    workload = replace(workload, environment_place_held=_holds_place(observed, admission))
    limit, update = _running_limit(observed, workload), _update(observed)
    engines = [engine_of(observed, curve) for curve in (fit.curve, *fit.draws)]
    trainers = _trainers(observed, training, steps_per_version)
    parts = zip(engines, trainers, strict=True)
    system, *draws = (System(workload, engine, trainer, update, admission) for engine, trainer in parts)
    return Calibration(
        system=system,
        draws=tuple(draws),
        layout=Layout(observed.trainer_gpus, observed.engines * observed.gpus_per_engine, limit),
        synchronous=bool(observed.staleness) and all(staleness <= 0 for staleness, _ in observed.staleness),
        steps=observed.steps.period_s.size,
        steps_per_version=steps_per_version,
        curve=fit,
        training=training,
        warnings=_warnings(observed, limit, slowness is not None),
        engine_slowness=slowness,
    )


def _decode_curves(
    observed: Observed, prior: HardwarePrior | None, rng: np.random.Generator, form: Form | None, draw_count: int
) -> tuple[CurveFit, tuple[float, ...] | None, Observed]:
    """Fit the curve of the mean engine; return each engine's time factor on it, and the run as equal engines show it.

    The first curve is drawn through fast and slow engines at once, which bends it; that of evened passes is not bent.
    Passes that updates slow down are evened before, and what they cost more belongs to the updates.
    """

    def fitted(run: Observed) -> CurveFit:
        # A pass that verifies drafts computes more rows than requests, so prompts of as many tokens take another time.
        prefills = NO_POINTS if tokens_per_pass(run.passes) > 1.0 else prefill_points(run.passes)
        points = decode_points(run.passes)
        fit = fit_decode_curve(points, prior, rng, form=form, draw_count=draw_count, prefills=prefills)
        if fit is None:
            raise UncalibratableError("no decode-only pass was recorded, so the cost of a decode pass is unknown")
        return fit

    fit = fitted(observed)
    slowdown = slowdown_during_updates(observed.passes, fit.curve)
    if slowdown > 1.0:
        observed = without_slowdown(observed, slowdown)
        fit = fitted(observed)
    slowness, evened = None, observed
    for _ in range(_EVENED_ROUNDS):
        slowness = unequal_engines(observed.passes, fit.curve) or slowness
        if slowness is None:
            break
        evened = replace(observed, passes=evened_passes(observed.passes, slowness))
        fit = fitted(evened)
    return fit, slowness, evened


def _training(
    observed: Observed, others: Sequence[OtherRun], rng: np.random.Generator, draw_count: int
) -> TrainingRate:
    own = observed.steps.of_training(observed.trainer_gpus)
    if not own.tokens.size:
        raise UncalibratableError("no step of the steady state records how many tokens it trained on, and for how long")
    return fit_training_rate(own, rng, draw_count, [each.steps.of_training(each.trainer_gpus) for each in others])


def _steps_per_version(observed: Observed, admission: Admission) -> float:
    """Optimizer steps from one step that is meant to publish to the next."""
    steps = observed.steps.per_version
    if steps is None:
        raise UncalibratableError("no policy version was published in the steady state")
    # If publications wait for the staleness cap, every optimizer step is meant to publish, and the cap skips some.
    return 1.0 if admission.staleness_policy == "publication_waits" else steps


def _workload(observed: Observed, steps_per_version: float, prefetched_batches: float, delivery: Delivery) -> Workload:
    steps, delivered, samples = observed.steps, observed.delivered, float(observed.steps.samples.sum())
    finished_per_s, (is_held, is_voided) = observed.finished_samples / observed.seconds, _environment_kv(observed)
    if not delivered.trained_tokens:
        raise UncalibratableError(
            "no trained sample is among the recorded samples: do `samples` and `deliveries` use the same sample ids?"
        )
    return Workload(
        lengths=observed.lengths,
        prompt_tokens=observed.prompt_tokens,
        group_size=observed.group_size,
        samples_per_step=max(1, round(samples / steps.period_s.size * steps_per_version)),
        trained_prompt_tokens=max(0.0, float(steps.tokens.sum() - steps.response_tokens.sum()) / samples),
        kept_ratio=delivered.trained_tokens / (delivered.trained_tokens + delivered.filtered_tokens),
        environment_s=observed.environment_samples / finished_per_s if finished_per_s else 0.0,
        environment_waits_s=observed.environment_waits_s,
        environment_kv_held=is_held,
        environment_kv_voided=is_voided,
        prefetched_batches=prefetched_batches,
        delivery=delivery,
        batches_per_version=_batches_per_version(observed, steps_per_version),
    )


def _batches_per_version(observed: Observed, steps_per_version: float) -> int:
    """Return equal batches, none of them smaller than a group."""
    groups = float(observed.steps.samples.mean()) / observed.group_size
    return max(1, round(steps_per_version * min(observed.batches_per_step, groups)))


def _environment_kv(observed: Observed) -> tuple[bool, bool]:
    """Whether samples outside the engine leave their KV in the cache, and whether updates void it there.

    They do if at least half of it is seen beside the KV of running requests: in the cache, and in what is recomputed
    for an update. Both are False without a recorded cache, or if no sample was outside; the second one also if
    preemptions caused recomputation too. Averaged over time, a running request has generated half of a length drawn by
    tokens (renewal theory), and a request outside the engine half of a length drawn by samples.
    """
    passes, lengths, prompt_tokens = observed.passes, observed.lengths, observed.prompt_tokens
    recorded = ~np.isnan(passes.kv_tokens) & (passes.decode_tokens > 0)
    away, counts = observed.environment_samples / observed.engines, observed.preemption_counts
    if not recorded.any() or not away:
        return False, False
    resident, running = (
        float(np.average(each[recorded], weights=passes.passes[recorded]))
        for each in (passes.kv_tokens, passes.running)
    )
    of_running = running * (prompt_tokens + lengths.second_moment / lengths.mean_tokens / 2.0)
    least = of_running + away * (prompt_tokens + lengths.mean_tokens / 2.0) / 2.0
    if observed.kv_kept or (counts is not None and counts.preemptions):
        return resident >= least, False
    again = float(passes.prefill_tokens.sum()) - prompt_tokens * observed.began_samples
    return resident >= least, again / (observed.publications * observed.engines) >= least


def _trainers(observed: Observed, training: TrainingRate, steps_per_version: float) -> list[Trainer]:
    """Best estimate of the trainer, then its draws, with seconds per publication instead of per optimizer step."""
    phases, trainers = _phases(observed, steps_per_version), (training.trainer, *training.draws)
    return [replace(each, overhead_s=each.overhead_s * steps_per_version, phases=phases) for each in trainers]


def _phases(observed: Observed, steps_per_version: float) -> tuple[TrainerPhase, ...]:
    """Phases of the trainer in seconds per publication."""
    steps, versions = observed.steps, observed.steps.period_s.size / steps_per_version
    # An evaluation that stops the engines too is spread over their passes, and therefore over the steps.
    stops_engines = ("eval", None) in observed.engine_state_s
    period = 1 if stops_engines else _versions_between(steps.other_s, steps_per_version)
    phases = (
        TrainerPhase("log-probabilities", float(steps.logprobs_s.sum()) / versions, shrinks_with_gpus=True),
        TrainerPhase(CHECKPOINTS_PHASE, float(steps.other_s.sum()) / versions, False, period),
        TrainerPhase("between steps", _between_s(observed) / versions, shrinks_with_gpus=False),
    )
    return tuple(phase for phase in phases if phase.step_s > 0.0)


def _versions_between(step_s: Reals, steps_per_version: float) -> int:
    """Versions from one occurrence of rare work to the next, from its seconds s in n steps: n sum(s^2) / sum(s)^2.

    Equal work in every k-th step gives k; other work, the period with the same variance (own derivation).
    """
    steps = step_s.size * float((step_s**2).sum()) / float(step_s.sum()) ** 2 if step_s.any() else 1.0
    return max(1, round(steps / steps_per_version))


def _between_s(observed: Observed) -> float:
    """Seconds of the trainers in no recorded phase, over all steps."""
    steps = observed.steps
    known_s = steps.train_s + steps.logprobs_s + steps.publish_s + steps.other_s + steps.wait_s
    return max(0.0, float((steps.period_s - known_s).sum()))


def _update(observed: Observed) -> WeightUpdateCost:
    """Cost of one publication; if the cap skips some, of those that were made."""
    blocked_s = float(observed.steps.publish_s.sum()) / observed.publications
    pause_s = (observed.apply_s or 0.0) + observed.update_slowdown_s
    return WeightUpdateCost(
        engine_pause_s=pause_s,
        trainer_blocked_s=blocked_s,
        delay_s=max(0.0, (observed.update_delay_s or 0.0) - pause_s),
        kv_kept=observed.kv_kept,
    )


def _holds_place(observed: Observed, admission: Admission) -> bool:
    """Whether samples outside the engine hold a place under its limit on running requests.

    They do not if each turn is a request of its own, and either more samples run or are outside than there are places,
    or a limit on samples in flight may explain why no more do. Else the number of clients, which is unknown, may.
    """
    most, limits = observed.max_running, (admission.max_running_samples, admission.max_in_flight_samples)
    if most is None or limits[0] is not None or observed.between_turns_samples <= observed.environment_samples / 2.0:
        return True
    samples = (observed.load.running_samples or 0.0) + observed.environment_samples
    return limits[1] is None and samples <= most * observed.engines


def _running_limit(observed: Observed, workload: Workload) -> int:
    """Current limit: the setting, or the maximum that ran if that is less, with the samples that hold a place too."""
    passes = observed.passes
    if observed.max_running and not workload.environment_place_held:
        return observed.max_running
    order = np.argsort(passes.running)
    below = np.cumsum(passes.passes[order]) / passes.passes.sum()
    seen = int(passes.running[order][np.searchsorted(below, _LIMIT_QUANTILE)])
    away = math.ceil(observed.environment_samples / observed.engines)
    return max(1, min(seen + away, observed.max_running or seen + away))


def _warnings(observed: Observed, limit: int, engines_differ: bool) -> tuple[ModelWarning, ...]:
    trainer_s = float(observed.steps.period_s.sum())
    found = {
        ModelWarning.LIMIT_BELOW_SETTING: limit < (observed.max_running or 0),
        ModelWarning.UNATTRIBUTED_ENGINE_TIME: observed.unattributed_engine_ratio > HOST_TIME_RATIO,
        ModelWarning.PREFILL_NOT_RECORDED: not bool(observed.passes.prefills.any()),
        ModelWarning.UNATTRIBUTED_TRAINER_TIME: _between_s(observed) > HOST_TIME_RATIO * trainer_s,
        ModelWarning.UNEQUAL_ENGINES: engines_differ,
        ModelWarning.SPECULATIVE_DECODING: tokens_per_pass(observed.passes) > 1.0,
        ModelWarning.UPDATES_SLOW_PASSES: observed.update_slowdown_s > 0.0,
    }
    return tuple(warning for warning, holds in found.items() if holds)
