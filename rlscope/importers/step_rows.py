"""Fill a run folder from placed steps: workers, training steps, activities, publications, reported values.

Nothing is made up. The trainer's rows are the phases that it logged. The only inference is that samplers generate while
the trainer waits for their samples.
"""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, pairwise
from typing import Final

from rlscope.format import counted, duration
from rlscope.frameworks.table import Framework, PhaseKind
from rlscope.importers.console import UNREAD_CONFIG
from rlscope.importers.importer import Importer, ImportSource, Progress
from rlscope.importers.layout import (
    Durations,
    PlacedStep,
    contradicts_times,
    durations_of,
    laid_out,
    longest_pause_ns,
    open_ratio,
    placed_steps,
)
from rlscope.importers.quantities import columns_of
from rlscope.importers.steps import ProcessSteps, Step, StepLog, derived_gpus, read_steps, recognize_steps
from rlscope.importers.target import ImportTarget, StepTimes
from rlscope.trace.imported import COMPLETE_RATIO, Certainty

_OVER_RATIO: Final = 0.03
"""Tolerance, as a share of the step, for phases that are longer than it."""
_OPEN_RATIO: Final = 0.10
"""Tolerance, as a share of the step, for what phases leave that are known to cover it. A verdict allows as much in no
state. Forks of early releases of verl leave 6%, because they do not time the log-probabilities of the policy."""
_SUM_RATIO: Final = 0.01
"""Tolerance, as a share of the step: a sum of phases this close equals the step to the printed digits."""
_PARTS: Final = 10
_FEWEST_OF_A_PART: Final = 5
"""Steps of a tenth of the run from which their mean stands for that tenth."""
_SHOWN_GAPS: Final = 5
_SAMPLING: Final = (PhaseKind.GENERATE, PhaseKind.TAKE, PhaseKind.WAIT_SAMPLES)
_INFERRED_GENERATION: Final = "samplers generate while the trainer waits for samples"
_UNKNOWN_SAMPLERS: Final = (
    "The trainer's files do not record what the samplers do while the trainer works. Pass the engine logs with "
    "--engine-log"
)


def _read(framework: Framework, source: ImportSource, target: ImportTarget, progress: Progress) -> None:
    log = read_steps(source, framework, target, progress)
    offset_s = target.options.utc_offset_s
    if target.clock == "local" and offset_s is not None:
        target.clock = "wall"
        for step in chain.from_iterable(each.steps for each in log.processes):
            step.end_ns = step.end_ns and step.end_ns - offset_s * 10**9
    fill(log, target)


def _settled(log: StepLog, target: ImportTarget) -> StepLog:
    """Decide whether samplers have their own GPUs: by the file, else by the options, else refuse a verdict."""
    gpus = target.options.gpus
    if log.framework.placement.separate_unless_phases_add_up and not log.is_separate:
        ratios = [open_ratio(durations_of(each, is_separate=False)) for each in log.processes]
        return replace(log, is_separate=any(abs(ratio or 0.0) > _SUM_RATIO for ratio in ratios))
    if log.is_stated:
        unused, how = ("colocated", "have GPUs of their own") if log.is_separate else ("sampler", "share the trainer's")
        if unused in gpus:
            target.note(f"--gpus {unused}={gpus[unused]} has no effect: by the file, samplers {how}")
        return log
    if gpus.keys() & {"sampler", "colocated"}:
        return replace(log, is_separate="colocated" not in gpus)
    if not log.is_doubtful:
        return log
    why = "the config that it prints cannot be parsed" if log.is_config_unread else "the file does not state which"
    target.refuse_verdict(
        f"these {log.framework.title} metrics look the same whether samplers have their own GPUs or share the "
        f"trainer's, and {why}; pass --gpus colocated=N or --gpus trainer=N,sampler=N"
    )
    return log


def step_importer(framework: Framework) -> Importer:
    """Return the importer of a framework's step metrics."""
    kind = f"step metrics of {framework.title}"
    return Importer(framework.name, kind, partial(recognize_steps, framework), partial(_read, framework))


def fill(log: StepLog, target: ImportTarget) -> None:
    """Add the workers and rows of a log of steps."""
    log = _settled(log, target)
    if log.is_config_unread:
        target.note(UNREAD_CONFIG)
    if log.changed:
        settings = "; ".join(log.changed)
        target.note(f"The run was started again with other settings: {settings}. The last ones stand for all steps.")
    reported: set[tuple[int, str]] = set()
    every = [(each, *_placed(each, log, target)) for each in log.processes]
    for each, _, placed in every:
        if each.process.role == "trainer":
            _leave_out_pauses(each, placed, target)
    for each, durations, placed in every:
        if not placed:
            continue
        if all(step.end_ns is None for step in each.steps):
            target.clock = "relative"
        worker_id = each.worker_id
        role = "colocated" if each.process.role == "trainer" and not log.is_separate else each.process.role
        _check_coverage(each, placed, log, target)
        _check_sums(open_ratio(durations), log, target)
        target.add_worker(worker_id, role, gpu_count=_gpus(log, each, role, target))
        target.extend_worker(worker_id, placed[0].start_ns, placed[-1].end_ns)
        if each.process.role == "trainer":
            _fill_trainer(log, worker_id, placed, target)
            if log.is_separate and not any(other.process.role == "sampler" for other in log.processes):
                _infer_sampler(log, placed, target)
        else:
            # Its log has no versions.
            target.say_origin("activities", Certainty.PLACED)
            for piece in chain.from_iterable(step.pieces for step in placed):
                target.add_phase(worker_id, piece.kind.settled(is_separate=False), piece.start_ns, piece.end_ns)
        _report(log, worker_id, placed, target, reported)
    target.add_config(gpus_per_engine=target.options.gpus_per_engine)
    target.add_config(**log.settings())


def _placed(steps: ProcessSteps, log: StepLog, target: ImportTarget) -> tuple[list[Durations], list[PlacedStep]]:
    """Return the durations of a process's steps, and the steps in time."""
    durations = durations_of(steps, log.is_separate)
    if contradicts_times(steps.steps, durations):
        target.note(
            f"Some {steps.worker_id} steps are longer than the time between their rows, so the row times are not used"
        )
        for step in steps.steps:
            step.end_ns = None
    return durations, placed_steps(steps.steps, durations, target.relative_origin_ns)


def _leave_out_pauses(steps: ProcessSteps, placed: Sequence[PlacedStep], target: ImportTarget) -> None:
    """Leave out the time in which the run was down, with the steps that it had to repeat."""
    pairs = [(a, b, b.start_ns - a.end_ns) for a, b in pairwise(placed) if b.start_ns > a.end_ns]
    longest_ns = longest_pause_ns([each.end_ns for each in placed])
    left_out = [(a, b, gap_ns) for a, b, gap_ns in pairs if b.step.starts > a.step.starts or gap_ns > longest_ns]
    for a, b, gap_ns in left_out[:_SHOWN_GAPS]:
        what = "was started again" if b.step.starts > a.step.starts else "was down or stood still"
        target.note(
            f"The run {what} between steps {a.step.number} and {b.step.number} of the {steps.worker_id}: "
            f"{duration(gap_ns / 1e9)} are left out for all workers"
        )
    target.leave_out([(a.end_ns, b.start_ns) for a, b, _ in left_out])
    again = [b for a, b, _ in left_out if b.step.starts > a.step.starts]
    target.restarts += [(each.start_ns + (each.step.before_ns or each.start_ns)) // 2 for each in again]


def _gpus(log: StepLog, steps: ProcessSteps, role: str, target: ImportTarget) -> int | None:
    """Return a worker's GPUs: from the options, the config or the rates; None if these do not tell."""
    if role == "controller":
        return 0
    if stated := target.options.gpus_of(role) or log.gpus(steps.process.role):
        return stated
    # In some releases, the GPUs that follow from the rates include those of the samplers.
    is_of_all = log.is_separate and (steps.process.gpu_work is not None or "total_gpus" in log.framework.settings)
    return None if is_of_all else derived_gpus(steps)


def _check_coverage(steps: ProcessSteps, placed: Sequence[PlacedStep], log: StepLog, target: ImportTarget) -> None:
    """Report how many of the steps were logged. If more than a few are missing, leave out their time."""
    worker_id, numbers = steps.worker_id, [step.number for step in steps.steps]
    if steps.repeated:
        target.note(
            f"{counted(steps.repeated, f'duplicate {worker_id} step', f'duplicate {worker_id} steps')} in the file "
            "(a resumed run, or two runs in one file); the last one is used"
        )
    if log.framework.rows_are_means or not numbers:
        return
    spanned = numbers[-1] - numbers[0] + 1
    target.say_coverage(worker_id, len(numbers) / spanned)
    if len(numbers) == spanned:
        return
    cut = [number for number in steps.cut if numbers[0] < number < numbers[-1]]
    missing = f"{len(numbers):,} of {spanned:,} steps; missing: {_gaps(numbers)}"
    if cut:
        missing += f" ({len(cut):,} without the time of the step, as if cut off: W&B's output.log cuts long lines)"
    target.note(f"The {worker_id} file contains {missing}")
    if len(numbers) >= COMPLETE_RATIO * spanned:
        return
    target.is_incomplete = True
    # The longest rows are cut off: those of steps that evaluate, for example.
    if _are_spread_evenly(numbers) and not cut:
        target.thinned_evenly.append(worker_id)
    else:
        target.refuse_verdict(
            f"the {worker_id} file contains {missing}; pass the whole log, an export of all rows, or the .wandb file"
        )
    if any(step.end_ns is not None for step in steps.steps):
        cuts = [(a.end_ns, b.start_ns) for a, b in pairwise(placed) if b.step.number > a.step.number + 1]
        target.leave_out([(start_ns, end_ns) for start_ns, end_ns in cuts if end_ns > start_ns])
        target.note("The time of the missing steps is left out for all workers; shares of time cover the other steps")


def _are_spread_evenly(numbers: Sequence[int]) -> bool:
    """Return whether every tenth of the run has enough steps, and half as many as the mean tenth: a fair sample."""
    first, spanned = numbers[0], numbers[-1] - numbers[0] + 1
    tenths = Counter((number - first) * _PARTS // spanned for number in numbers)
    fewest = min(tenths[part] for part in range(_PARTS))
    return fewest >= max(_FEWEST_OF_A_PART, len(numbers) / _PARTS / 2)


def _gaps(numbers: Sequence[int]) -> str:
    """Format the missing numbers as ranges, listing only the first few."""
    gaps = [(a + 1, b - 1) for a, b in pairwise(numbers) if b > a + 1]
    shown = ", ".join(f"{first}" if first == last else f"{first}-{last}" for first, last in gaps[:_SHOWN_GAPS])
    return shown + (f" and {len(gaps) - _SHOWN_GAPS:,} more gaps" if len(gaps) > _SHOWN_GAPS else "")


def _check_sums(left: float | None, log: StepLog, target: ImportTarget) -> None:
    """Refuse a verdict if the phases do not add up to the step, because a name was then misunderstood.

    left: share of the step that the phases leave.
    """
    if left is None or -_OVER_RATIO <= left <= (_OPEN_RATIO if log.framework.phases_add_up else 1.0):
        return
    amount = f"exceed the step by {-left:.1%}" if left < 0.0 else f"leave {left:.1%} of the step unexplained"
    target.refuse_verdict(
        f"the known {log.framework.title} phases {amount} in the median; the release may use metric names that rlscope "
        "does not know"
    )


def _fill_trainer(log: StepLog, worker_id: str, placed: Sequence[PlacedStep], target: ImportTarget) -> None:
    """Add activities, steps and publications of the trainer."""
    samples = log.settings().get("samples_per_step")
    others = {step.number: step.values for each in log.processes if each.worker_id != worker_id for step in each.steps}
    target.say_origin("activities", Certainty.PLACED)
    target.say_origin("train_steps", Certainty.PLACED)
    target.trainer_id, target.samplers_id = worker_id, log.sampler_id if log.is_separate else worker_id
    for each, version_in, version_out in _versions(log, placed):
        number, trained = each.step.number, each.of(PhaseKind.TRAIN)
        for piece in each.pieces:
            if piece.kind is PhaseKind.UPDATE:
                target.say_origin("weight_updates", Certainty.PLACED)
                phase = "publish" if log.is_separate else log.framework.placement.colocated_update
                target.add_update(worker_id, phase, version_out, piece.start_ns, piece.end_ns)
                parts_s = _update_parts(log, each.step)
                for part, start_ns, end_ns in laid_out(parts_s.items(), piece.start_ns, piece.end_ns):
                    target.add_update(worker_id, part, version_out, start_ns, end_ns)
            elif piece.kind is not PhaseKind.TRAIN:
                kind = piece.kind.settled(is_separate=log.is_separate)
                target.add_phase(worker_id, kind, piece.start_ns, piece.end_ns)
        if trained:
            start_ns, sampled = trained[0].start_ns, each.of(*_SAMPLING)
            values = others.get(number, {}) | each.step.values
            columns = {"samples": samples, **columns_of(values, log.framework.columns)}
            target.add_training(worker_id, number, (version_in, version_out), (start_ns, trained[-1].end_ns), columns)
            generated_ns = sampled[-1].end_ns if sampled else each.start_ns
            target.steps[number] = StepTimes(generated_ns, start_ns, version_in, not log.is_separate)


def _versions(log: StepLog, placed: Sequence[PlacedStep]) -> Iterator[tuple[PlacedStep, int, int]]:
    """Yield each step with the version that it trains and the one that it leaves.

    In a log without publications, every step makes a version.
    """
    is_numbered = log.framework.versions_are_steps
    updates = any(each.of(PhaseKind.UPDATE) for each in placed)
    version = placed[0].step.number - 1 if is_numbered else 0
    for each in placed:
        published, trained = each.of(PhaseKind.UPDATE), each.of(PhaseKind.TRAIN)
        version_in = version
        if published or not updates:
            version = each.step.number if is_numbered else version + 1
        if published and (not trained or published[0].end_ns <= trained[0].start_ns):
            version_in = version
        yield each, version_in, version


def _update_parts(log: StepLog, step: Step) -> dict[str, float]:
    """Return the seconds of each part of the step's weight update that the file has."""
    values = {
        part: next((step.values[name] for name in names if name in step.values), 0.0)
        for part, names in log.framework.update_parts.items()
    }
    return {part: seconds for part, seconds in values.items() if math.isfinite(seconds) and seconds > 0.0}


def _infer_sampler(log: StepLog, placed: Sequence[PlacedStep], target: ImportTarget) -> None:
    """Add the sampler, which does not log: it generates while the trainer waits, and applies published weights."""
    target.sampler_gpus = target.options.gpus_of("sampler") or log.gpus("sampler")
    if target.knows_samplers:
        return
    target.add_worker(log.sampler_id, "sampler", gpu_count=target.sampler_gpus)
    target.extend_worker(log.sampler_id, placed[0].start_ns, placed[-1].end_ns)
    target.say_origin("activities", Certainty.INFERRED, _INFERRED_GENERATION)
    for each, _, version in _versions(log, placed):
        for piece in each.of(PhaseKind.TAKE, PhaseKind.WAIT_SAMPLES):
            target.add_phase(log.sampler_id, PhaseKind.GENERATE, piece.start_ns, piece.end_ns)
        for piece in each.of(PhaseKind.UPDATE):
            target.add_update(log.sampler_id, "apply", version, piece.start_ns, piece.end_ns)
    target.note(_UNKNOWN_SAMPLERS)


def _report(
    log: StepLog, worker_id: str, placed: Sequence[PlacedStep], target: ImportTarget, known: set[tuple[int, str]]
) -> None:
    """Add the framework's own metrics, unchanged, except those known from another process."""
    for each in placed:
        number = each.step.number
        values = {name: value for name, value in each.step.values.items() if (number, name) not in known}
        known |= {(number, name) for name in values}
        target.add_reported(log.framework, worker_id, number, each.end_ns, values)
