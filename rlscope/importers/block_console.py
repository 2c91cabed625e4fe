"""A console that prints a block of durations without times after each step, as NeMo-RL's does.

If other lines between the blocks have timestamps, a step starts at the first timestamp inside its block, which keeps
the gaps between steps visible. Otherwise the steps are laid end to end. The lines and the phases are those of the
framework's table.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from statistics import median
from typing import Final

from rlscope.errors import ImportFileError
from rlscope.frameworks.table import Framework, PhaseKind, era_of
from rlscope.importers.console import UNREAD_CONFIG, PrintedConfig
from rlscope.importers.importer import Importer, ImportSource, Progress
from rlscope.importers.lines import LogClock, LogFile, clean_lines, open_clock, to_ns
from rlscope.importers.quantities import MOST_STEPS, RefusedNumberError, amount, columns_of, seconds, whole
from rlscope.importers.steps import gpus_of, runs_separately, stated_settings, whole_ratio
from rlscope.importers.target import ImportOptions, ImportTarget, StepTimes
from rlscope.trace.imported import Certainty

_TOTAL: Final = "total"
"""The duration of a step among its numbers."""
_SAMPLING: Final = (PhaseKind.GENERATE, PhaseKind.TAKE, PhaseKind.WAIT_SAMPLES)
_LAST: Final = (PhaseKind.EVAL, PhaseKind.CHECKPOINT)
"""Phases that come after all others of the step."""
_GENERATES: Final = "samplers generate while the trainer waits for samples; otherwise unknown"
_BETWEEN: Final = "between steps, the trainer writes logs and files"
_CLOSES_WITHIN_RATIO: Final = 0.03
"""Largest share of the median step that the phases may leave. Above it, the log has names that the table lacks."""


class _Layout:
    """The patterns of a framework's console, and its phases in program order."""

    def __init__(self, framework: Framework) -> None:
        self.framework = framework
        self.console = framework.console
        process = framework.phases["trainer"]
        self.prefix = process.step[0].removesuffix(process.step[0].rpartition("/")[2])
        """Beginning of a metric's name, which the console leaves out."""
        known = {(each.metric or "").removeprefix(self.prefix): each.kind for each in process.order}
        first = [name for name, kind in known.items() if kind not in _LAST]
        self.kinds = known | {kind: kind for kind in _LAST if kind in self.console.numbers}
        """Kind of each phase, by its name on the console."""
        self.parts = {
            name.removeprefix(self.prefix): part for part, names in framework.update_parts.items() for name in names
        }
        """Part of a weight update, by its name on the console."""
        self.first = tuple(first)
        self.last = tuple(sorted(self.kinds.keys() - set(first), key=lambda name: _LAST.index(self.kinds[name])))
        trained = (at for at, name in enumerate(first) if known[name] is PhaseKind.TRAIN)
        self.to_train = self.first[: next(trained, 0)]
        """Phases before the training, and those of them up to the end of generation."""
        sampling = (at for at, name in enumerate(first) if known[name] in _SAMPLING)
        self.to_sampled = self.first[: 1 + max(sampling, default=-1)]
        self.heading = re.compile(self.console.heading or "")
        self.total = re.compile(self.console.total or "")
        self.phase = re.compile(self.console.phase or "")
        self.stamp = re.compile(self.console.stamp or r"(?P<ts>(?!))")
        self.numbers = {name: re.compile(pattern) for name, pattern in self.console.numbers.items()}


@dataclass(slots=True)
class _Step:
    """One step as printed on the console; durations in seconds."""

    step: int
    resumes: bool = False
    """Whether an abandoned attempt lies between this step and the previous one."""
    stamped_ns: int | None = None
    """Time of the first timestamped line inside the block."""
    phases: dict[str, float] = field(default_factory=dict[str, float])
    """Durations of phases that do not overlap, by name."""
    update_parts: dict[str, float] = field(default_factory=dict[str, float])
    """Durations of the parts of the weight update."""
    numbers: dict[str, float] = field(default_factory=dict[str, float])
    """Everything else in the block, with the duration of the step."""

    @property
    def total_s(self) -> float:
        """Duration of the step; 0 if the block is incomplete."""
        return self.numbers.get(_TOTAL, 0.0)


@dataclass(slots=True)
class _Run:
    """State of an import once the console is read."""

    layout: _Layout
    target: ImportTarget
    steps: list[_Step]
    is_async: bool
    trainer: str
    sampler: str
    """The trainer's id again if it shares its GPUs."""

    @property
    def workers(self) -> tuple[str, ...]:
        """The ids of the workers."""
        return (self.trainer,) if self.sampler == self.trainer else (self.trainer, self.sampler)


def prints_blocks(framework: Framework) -> bool:
    """Return whether a framework's table describes such blocks, and the step and phases in them."""
    return (
        framework.console.total is not None and "trainer" in framework.phases and bool(framework.phases["trainer"].step)
    )


def block_console(framework: Framework) -> Importer:
    """Return the importer of a framework's console."""
    layout = _Layout(framework)
    kind = f"console of {framework.title or framework.name}"
    return Importer(framework.name, kind, partial(_recognise, layout), partial(_read, layout), is_console=True)


def _recognise(layout: _Layout, source: ImportSource) -> str | None:
    lines = [line.text for line in clean_lines(source.text)]
    if totals := sum(1 for line in lines if layout.total.search(line)):
        return f"{totals} lines {layout.console.lines}"
    steps = sum(1 for line in lines if layout.heading.search(line))
    has_numbers = any(pattern.search(line) for line in lines for pattern in layout.numbers.values())
    return f"{steps} lines that begin a step" if steps and has_numbers else None


def _read(
    layout: _Layout, source: ImportSource, target: ImportTarget, options: ImportOptions, progress: Progress
) -> str | None:
    """Lay out the steps of a console. Raises ImportFileError if no step has durations."""
    clock = open_clock(source.path, layout.stamp, target, options)
    log, config = LogFile(source.path, progress), PrintedConfig()
    steps = list(_steps(layout, log, clock, config))
    done = _last_attempts(step for step in steps if step.total_s)
    if not done:
        raise ImportFileError.of(
            source.path,
            found=f"{log.lines:,} lines, none with {layout.console.lines}",
            expected=f"the console log of a {layout.framework.title} run with at least one finished step",
            next_step="Pass the driver's log, or name another framework with --as.",
        )
    if config.is_unread:
        target.note(UNREAD_CONFIG)
    run = _run_of(layout, target, options, config.settings, done)
    starts_ns = _starts(run, clock)
    for step, start_ns in zip(done, starts_ns, strict=True):
        _lay_out(run, step, start_ns)
    for end_ns, next_ns in _between(done, starts_ns):
        target.add_phase(run.trainer, PhaseKind.OTHER, end_ns, next_ns)
    if repeated := sum(1 for step in steps if step.total_s) - len(done):
        target.note(
            f"{repeated:,} duplicate {run.trainer} steps in the file (a resumed run, or two runs in one file); the last"
            " one of each is used"
        )
    _say(run, starts_ns, len({step.step for step in steps}))
    target.add_file("console", log.source())
    return era_of(layout.console.eras, (name for step in done for name in step.phases))


def _steps(layout: _Layout, log: LogFile, clock: LogClock | None, config: PrintedConfig) -> Iterator[_Step]:
    """Yield the blocks in file order, including incomplete ones. The config is printed before the first.

    Some blocks have no heading: those of NeMo-RL's single controller, or the first one of a log that is cut off. Such a
    block follows a complete one and begins with its total or with a number that the complete one has.
    """
    step, has_begun, has_heading = _Step(1), False, False
    for line in log:
        try:
            if opening := layout.heading.search(line.text):
                number = whole(opening["step"], MOST_STEPS)
                if has_begun:
                    step.step = step.step if has_heading else max(step.step, number - 1)
                    yield step
                step, has_begun, has_heading = _Step(number), True, True
                continue
            total = layout.total.search(line.text)
            if step.total_s and (total or _is_stated_again(layout, step, line.text)):
                yield step
                step = _Step(step.step + 1)
            if total:
                step.numbers[_TOTAL], has_begun = seconds(total["s"]), True
                continue
            _take(layout, step, line.text)
            if not has_begun:
                config.read(line)
            elif step.stamped_ns is None and clock and not line.merged and (found := layout.stamp.search(line.text)):
                step.stamped_ns = clock.time_ns(found["ts"])
        except RefusedNumberError:
            log.bad_lines += 1
    if has_begun:
        yield step


def _last_attempts(steps: Iterable[_Step]) -> list[_Step]:
    """Return the steps without those of an abandoned attempt, which a resumed run takes again."""
    kept: list[_Step] = []
    for step in steps:
        while kept and kept[-1].step >= step.step:
            kept.pop()
            step.resumes = True
        kept.append(step)
    return kept


def _is_stated_again(layout: _Layout, step: _Step, text: str) -> bool:
    return any(name in step.numbers and pattern.search(text) for name, pattern in layout.numbers.items())


def _take(layout: _Layout, step: _Step, text: str) -> None:
    if phase := layout.phase.search(text):
        name = phase["name"]
        if name in layout.parts:
            step.update_parts[layout.parts[name]] = seconds(phase["s"])
        elif name in layout.kinds or not ("/" in name or name in layout.console.nested):
            step.phases[name] = seconds(phase["s"])
        return
    for name, pattern in layout.numbers.items():
        if found := pattern.search(text):
            if name in layout.kinds:
                step.phases[name] = seconds(found[1])
            else:
                step.numbers[name] = amount(found[1])


def _run_of(
    layout: _Layout, target: ImportTarget, options: ImportOptions, config: Mapping[str, object], steps: list[_Step]
) -> _Run:
    """Add the workers and the config."""
    table, workers, names = layout.framework, layout.console.workers, {name for step in steps for name in step.phases}
    is_async = any(layout.kinds.get(name) is PhaseKind.WAIT_SAMPLES for name in names)
    is_separate = is_async and runs_separately(
        table.placement, frozenset(f"{layout.prefix}{name}" for name in names), config
    )
    stated = stated_settings(config, table)
    if not is_async:
        stated.pop("max_staleness", None)
    target.add_config(**stated)
    trainer, sampler = workers.get("trainer", "trainer"), workers.get("sampler", "sampler")
    every = gpus_of(config, table, "total") or _gpus_by_rates(layout, steps)
    if not is_separate:
        gpus = options.gpus.get("colocated", sum(options.gpus.values()) or every)
        target.add_worker(trainer, "colocated", gpu_count=gpus)
        return _Run(layout, target, steps, is_async, trainer, trainer)
    sampling = gpus_of(config, table, "sampler")
    training = every - sampling if every and sampling and every > sampling else None
    target.add_worker(trainer, "trainer", gpu_count=options.gpus.get("trainer", training))
    target.add_worker(sampler, "sampler", gpu_count=options.gpus.get("sampler", sampling))
    if training is None and not {"trainer", "sampler"} <= options.gpus.keys():
        target.note("The log does not state how GPUs are split between trainer and sampler. Pass --gpus")
    return _Run(layout, target, steps, is_async, trainer, sampler)


def _gpus_by_rates(layout: _Layout, steps: list[_Step]) -> int | None:
    """Return the number of GPUs, as total throughput over per-GPU throughput; None if that is not a whole number."""
    for step in steps:
        every, each = (step.numbers.get(name) for name in layout.console.gpu_ratio or ("", ""))
        if every and each:
            return whole_ratio(every / each)
    return None


def _starts(run: _Run, clock: LogClock | None) -> list[int]:
    """Return when each step started: at its first timestamped line, but never before the previous step ended."""
    if clock is None:
        run.target.clock = "relative"
    stamps = (step.stamped_ns for step in run.steps if step.stamped_ns is not None)
    end_ns = next(stamps, run.target.relative_origin_ns)
    starts: list[int] = []
    for step in run.steps:
        start_ns = max(end_ns, step.stamped_ns or 0)
        starts.append(start_ns)
        end_ns = start_ns + to_ns(step.total_s)
    return starts


def _between(steps: list[_Step], starts_ns: list[int]) -> Iterator[tuple[int, int]]:
    """Yield the end of each step and the start of the next one, if time of the trainer lies between them."""
    ends_ns = [start + to_ns(step.total_s) for step, start in zip(steps, starts_ns, strict=True)]
    found = zip(steps[1:], ends_ns, starts_ns[1:], strict=False)
    return ((end, after) for step, end, after in found if after > end and not step.resumes)


def _lay_out(run: _Run, step: _Step, start_ns: int) -> None:
    layout, end_ns = run.layout, start_ns + to_ns(step.total_s)
    others = [name for name in step.phases if name not in layout.kinds]
    at_ns = start_ns
    for name in (*layout.first, *others):
        at_ns = _place(run, step, name, at_ns, end_ns)
    run.target.steps[step.step] = StepTimes(
        start_ns + _length_ns(step, layout.to_sampled),
        start_ns + _length_ns(step, layout.to_train),
        step.step - 1,
        not any(layout.kinds.get(name) is PhaseKind.WAIT_SAMPLES for name in step.phases),
    )
    run.target.samplers_id = run.sampler
    # Time that no phase covers lies before the validation: most of it loads weights.
    at_ns = max(at_ns, end_ns - _length_ns(step, layout.last))
    for name in layout.last:
        at_ns = _place(run, step, name, at_ns, end_ns)
    for worker in run.workers:
        run.target.extend_worker(worker, start_ns, end_ns)


def _length_ns(step: _Step, names: tuple[str, ...]) -> int:
    return sum(to_ns(step.phases.get(name, 0.0)) for name in names)


def _place(run: _Run, step: _Step, name: str, start_ns: int, limit_ns: int) -> int:
    """Add the rows of one phase and return its end, which is never after the end of the step."""
    end_ns = min(limit_ns, start_ns + to_ns(step.phases.get(name, 0.0)))
    if end_ns <= start_ns:
        return start_ns
    target, kind, is_separate = run.target, run.layout.kinds.get(name, PhaseKind.OTHER), len(run.workers) == 2
    if kind is PhaseKind.TRAIN:
        target.add("train_steps", {**_train_step(run, step), "start_ns": start_ns, "end_ns": end_ns})
    elif kind is PhaseKind.UPDATE:
        version = step.step - 1 if name in run.layout.to_train else step.step
        if is_separate:
            target.add_update(run.trainer, "publish", version, start_ns, end_ns)
        target.add_update(run.sampler, "apply", version, start_ns, end_ns)
        target.add_update_parts(run.sampler, version, start_ns, end_ns, step.update_parts)
    elif kind is PhaseKind.WAIT_SAMPLES:
        if is_separate:
            target.add_phase(run.trainer, kind, start_ns, end_ns)
        target.add_phase(run.sampler, PhaseKind.GENERATE, start_ns, end_ns)
    else:
        for worker in run.workers if kind is PhaseKind.EVAL else (run.trainer,):
            target.add_phase(worker, kind, start_ns, end_ns)
    return end_ns


def _train_step(run: _Run, step: _Step) -> dict[str, object]:
    row: dict[str, object] = {"worker_id": run.trainer, "step": step.step}
    row |= {"version_in": step.step - 1, "version_out": step.step}
    return row | columns_of(step.numbers, run.layout.console.columns)


def _say(run: _Run, starts_ns: list[int], opened: int) -> None:
    target, steps, title = run.target, run.steps, run.layout.framework.title
    target.say_origins(Certainty.PLACED, "activities", "train_steps", "weight_updates")
    rules = [_GENERATES] if run.is_async and len(run.workers) == 2 else []
    rules += [_BETWEEN] if any(_between(steps, starts_ns)) else []
    if rules:
        target.say_origin("activities", Certainty.INFERRED, "; ".join(rules))
    numbers = {step.step for step in steps}
    expected = max(opened - (1 if opened > len(steps) else 0), max(numbers) - min(numbers) + 1)
    for worker in run.workers:
        target.say_coverage(worker, min(1.0, len(numbers) / expected))
    plain = [step for step in steps if PhaseKind.EVAL not in step.phases] or steps
    if median(abs(step.total_s - sum(step.phases.values())) / step.total_s for step in plain) > _CLOSES_WITHIN_RATIO:
        target.note(f"The phases do not add up to the step times; this {title} release may use other names.")
    if not any(step.numbers.keys() & set(run.layout.console.gpu_ratio or ()) for step in steps):
        target.note("The log has no token counts per step, so throughput is unknown.")
    if not any(step.stamped_ns for step in steps):
        target.note("The log has no timestamps: steps are placed end to end, and time between steps is missing.")
        return
    between_s = sum(after - before for before, after in _between(steps, starts_ns)) / 1e9
    target.note(
        f"Steps start at the first timestamp inside them, to the second. {between_s:,.0f} s lie between steps, where"
        f" {title} measures nothing (it writes logs and files there): other recorded activity."
    )
