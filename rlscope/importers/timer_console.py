"""A console that prints when named timers start and end, with timestamps, and the results of each step.

What the timers stand for, and what the results are called, is in the framework's table. A timer of the kind `take`
runs while the trainer does not train: if trainers and samplers share their GPUs, these generate, else the trainer waits
for samples. Timers inside it take precedence.
"""

import re
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import Final

from rlscope.errors import ImportFileError
from rlscope.frameworks.table import Framework, PhaseKind, Role
from rlscope.importers.importer import Importer, ImportSource, Progress
from rlscope.importers.lines import ConsoleLine, LogClock, LogFile, clean_lines, open_clock, to_ns
from rlscope.importers.quantities import (
    COUNTS,
    MOST_STEPS,
    RefusedNumberError,
    amount,
    columns_of,
    factors_in,
    named_reals,
    real,
    seconds,
    whole,
)
from rlscope.importers.sglang import SGLANG_LOG, STAMPED
from rlscope.importers.spans import Spans
from rlscope.importers.steps import runs_separately
from rlscope.importers.target import ImportOptions, ImportTarget
from rlscope.importers.timers import PrintedSettings, Span, Timers
from rlscope.trace.imported import Certainty

_NUMBER: Final = r"-?\d+(?:\.\d*)?(?:e[-+]?\d+)?"
_HELD: Final = (PhaseKind.TAKE, PhaseKind.GENERATE, PhaseKind.UPDATE)
"""Timers whose rows depend on whether trainers and samplers share their GPUs, which may be known only at the end."""
_ROLLOUTS: Final = "a rollout ends when its metrics are printed, and no request runs between rollouts"


@dataclass(slots=True)
class _Run:
    """State of an import while the console is read."""

    framework: Framework
    target: ImportTarget
    clock: LogClock | None
    settings: PrintedSettings
    timers: dict[str | None, Timers] = field(default_factory=dict[str | None, Timers])
    """Timers by the actor that prints them, or by None if only one process prints timers."""
    names: set[str] = field(default_factory=set[str])
    """Timers that ended."""
    held: list[tuple[PhaseKind, Span, int]] = field(default_factory=list[tuple[PhaseKind, Span, int]])
    """Spans of `_HELD`, with the last version that was published."""
    parts: list[tuple[str, Span]] = field(default_factory=list[tuple[str, Span]])
    """Parts of the update that is running."""
    rollouts: Spans = field(default_factory=Spans)
    version: int = 0
    """The last version that was published."""
    trained: tuple[Span, int] | None = None
    """The training that is held until its results are printed, and the version that it started from."""
    trainings: int = 0
    results: dict[str, float] = field(default_factory=dict[str, float])
    step: int = 0
    """Number of the training that is held."""
    steps: set[int] = field(default_factory=set[int])
    engine_lines: int = 0

    def worker(self, role: Role) -> str:
        """Return the name of a worker."""
        return self.framework.console.workers.get(role, role)

    @property
    def kinds(self) -> set[PhaseKind]:
        """Kinds of the timers that ended."""
        return {kind for name, kind in self.framework.console.timers.items() if name in self.names}

    @property
    def is_separate(self) -> bool:
        """Whether trainers and samplers have GPUs of their own."""
        return runs_separately(self.framework.placement, frozenset(self.names), self.settings.config())


def timer_console(framework: Framework) -> Importer:
    """Return the importer of a framework's console."""
    kind = f"console of {framework.title or framework.name}"
    return Importer(framework.name, kind, partial(_recognise, framework), partial(_read, framework), is_console=True)


def _recognise(framework: Framework, source: ImportSource) -> bool:
    timer = re.compile(framework.console.timer or "")
    return any(timer.search(line.text) for line in clean_lines(source.text))


def _read(
    framework: Framework, source: ImportSource, target: ImportTarget, options: ImportOptions, progress: Progress
) -> None:
    """Add trainer, samplers and engines of one console. Raises ImportFileError if no timer ended."""
    console = framework.console
    timer, facts = re.compile(console.timer or ""), re.compile(console.facts or r"(?!)")
    clock = open_clock(source.path, timer, target, options)
    log = LogFile(source.path, progress)
    run = _Run(framework, target, clock, PrintedSettings(framework), step=0 if "number" in facts.groupindex else 1)
    results = _results_of(framework)
    for line in log:
        try:
            _take_line(run, line, timer, facts, results)
        except RefusedNumberError:
            log.tally.bad_lines += 1
    _add_training(run)
    if clock is None or not run.names:
        raise ImportFileError.of(
            source.path,
            found=f"no line {console.lines or 'of a timer that ended'}",
            expected=f"the console log of a {framework.title or framework.name} run",
            next_step=f"Pass {console.file or 'the log that has them'}.",
        )
    _add_workers(run, options)
    _add_held(run)
    _say(run, log)
    target.add_file("console", log.source())
    if run.engine_lines:
        SGLANG_LOG.read(source, target, replace(options, utc_offset_s=clock.offset_s), lambda _bytes: None)


def _results_of(framework: Framework) -> re.Pattern[str]:
    """Return the pattern of results that the console prints as `NAME: VALUE`."""
    names = sorted(factors_in(chain(*framework.console.columns.values())))
    return re.compile(rf"(?<![\w/.])({'|'.join(map(re.escape, names))})\s?[:=]\s?({_NUMBER})" if names else r"(?!)")


def _take_line(
    run: _Run, line: ConsoleLine, timer: re.Pattern[str], facts: re.Pattern[str], results: re.Pattern[str]
) -> None:
    text, clock = line.text, run.clock
    if clock and (found := timer.search(text)) and (time_ns := clock.time_ns(found["ts"])) is not None:
        _take_timer(run, line.actor if run.framework.console.several_print_timers else None, found, time_ns)
    elif found := facts.search(text):
        _take_facts(run, found)
    elif run.framework.console.engine and " batch" in text and STAMPED.search(text):
        run.engine_lines += 1
    else:
        run.results.update((name, real(value)) for name, value in results.findall(text))
        run.settings.read(text)


def _take_timer(run: _Run, actor: str | None, found: re.Match[str], time_ns: int) -> None:
    trainer, name = run.worker("trainer"), found["name"]
    if actor not in run.timers:
        run.timers[actor] = Timers(f"{trainer}-{len(run.timers) + 1}" if run.timers else trainer)
    timers = run.timers[actor]
    if found["end"] is None:
        timers.start(name, time_ns)
        return
    span = timers.end(name, time_ns, seconds(found["s"]) if found["s"] else None)
    run.names.add(name)
    kind = run.framework.console.timers.get(name)
    if (part := run.framework.console.parts.get(name)) and timers.worker_id == trainer:
        run.parts.append((part, span))
    if kind is not None and kind in _HELD:
        if timers.worker_id == trainer:
            _hold(run, kind, span)
    elif kind is PhaseKind.TRAIN and timers.worker_id == trainer:
        _add_training(run)
        run.trained = span, run.version
        run.trainings += 1
    elif kind is not None:
        run.target.add_phase(timers.worker_id, kind, span.start_ns, span.end_ns)


def _hold(run: _Run, kind: PhaseKind, span: Span) -> None:
    if kind is PhaseKind.UPDATE and (run.trainings or run.version < run.framework.console.first_version):
        run.version += 1
    for part, (_, start_ns, end_ns) in run.parts if kind is PhaseKind.UPDATE else ():
        run.target.add_update(run.worker("trainer"), part, run.version, start_ns, end_ns)
    run.parts = []
    run.held.append((kind, span, run.version))


def _take_facts(run: _Run, found: re.Match[str]) -> None:
    console, groups = run.framework.console, found.groupdict()
    facts = named_reals(found.string[found.end() :])
    for name in factors_in(chain(*(console.columns.get(column, ()) for column in COUNTS))):
        amount(facts.get(name, 0.0))
    rollout_s = seconds(facts.get(console.rollout or "", 0.0))
    number = whole(groups["number"], MOST_STEPS) if groups.get("number") else None
    time_ns = run.clock.time_ns(groups["ts"]) if run.clock and groups.get("ts") else None
    run.results.update(facts)
    if time_ns is not None:
        if rollout_s:
            run.rollouts.add(time_ns - to_ns(rollout_s), time_ns)
        if number is not None:
            run.target.add_reported(run.framework, run.worker("trainer"), number, time_ns, facts)
    if facts.keys() & set(console.step_ends_with):
        run.step = run.step if number is None else number
        _add_training(run)


def _add_training(run: _Run) -> None:
    """Add the training that was held, with the results printed since."""
    if run.trained is None:
        return
    span, version = run.trained
    columns = columns_of(run.results, run.framework.console.columns)
    step = run.step if run.step not in run.steps else max(run.steps) + 1
    row = {"worker_id": run.worker("trainer"), "step": step, "start_ns": span.start_ns, "end_ns": span.end_ns}
    row |= {"version_in": version, "version_out": version + 1}
    run.target.add("train_steps", {"samples": run.settings.stated().get("samples_per_step"), **row, **columns})
    run.steps.add(step)
    run.step = step + 1
    run.trained, run.results = None, {}


def _add_workers(run: _Run, options: ImportOptions) -> None:
    trainer, gpus = run.worker("trainer"), options.gpus
    stated = run.settings.stated()
    if PhaseKind.WAIT_SAMPLES not in run.kinds:
        # Without a queue between the roles, the setting has no effect.
        stated.pop("max_staleness", None)
    run.target.add_config(**stated)
    training = gpus.get("trainer", run.settings.gpus("trainer"))
    if run.is_separate:
        run.target.add_worker(trainer, "trainer", gpu_count=training)
        sampling = gpus.get("sampler", run.settings.gpus("sampler"))
        run.target.add_worker(run.worker("sampler"), "sampler", gpu_count=sampling)
    else:
        run.target.add_worker(trainer, "colocated", gpu_count=gpus.get("colocated", training))
    for timers in run.timers.values():
        if timers.worker_id != trainer:
            run.target.add_worker(timers.worker_id, "trainer", gpu_count=None)
        timers.settle(run.target)


def _add_held(run: _Run) -> None:
    """Add the rows that depend on whether trainers and samplers share GPUs."""
    target, trainer, is_separate = run.target, run.worker("trainer"), run.is_separate
    generates = run.worker("sampler") if is_separate else trainer
    waits = is_separate and PhaseKind.WAIT_SAMPLES not in run.kinds
    for kind, (_, start_ns, end_ns), version in run.held:
        if kind is PhaseKind.UPDATE:
            if is_separate:
                target.add_update(trainer, "publish", version, start_ns, end_ns)
            target.add_update(generates, "apply", version, start_ns, end_ns)
        elif kind is PhaseKind.GENERATE:
            target.add_phase(generates, kind, start_ns, end_ns)
        if kind is not PhaseKind.UPDATE and (kind is PhaseKind.TAKE or waits):
            target.add_phase(trainer, PhaseKind.WAIT_SAMPLES if is_separate else PhaseKind.GENERATE, start_ns, end_ns)
        if kind is not PhaseKind.TAKE:
            target.extend_worker(generates, start_ns, end_ns)
    if is_separate:
        run.rollouts.write(generates, target, _ROLLOUTS)


def _say(run: _Run, log: LogFile) -> None:
    target, console = run.target, run.framework.console
    target.say_origins(Certainty.RECORDED, "train_steps", "weight_updates", "activities")
    if PhaseKind.TAKE in run.kinds and not run.is_separate:
        rule = "GPUs generate when they are not training, saving or updating weights"
        target.say_origin("activities", Certainty.INFERRED, rule)
    if run.steps and console.facts and "(?P<number>" in console.facts:
        target.say_coverage(run.worker("trainer"), len(run.steps) / (max(run.steps) - min(run.steps) + 1))
    log.tally.bad_lines += sum(timers.unpaired for timers in run.timers.values())
    if "tokens" not in console.columns:
        target.note(
            f"{run.framework.title}'s console log has no token counts, so throughput is unknown. Pass its .wandb file"
            " or W&B export."
        )
    if not run.steps:
        target.note("The log contains no finished training step.")
    if console.engine and not run.engine_lines and run.is_separate:
        target.note(
            "The log has no SGLang lines, so engine step times are unknown. Pass SGLang's log with --engine-log.",
            unless="engine_steps",
        )
