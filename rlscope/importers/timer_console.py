"""A console that prints when named timers start and end, with timestamps, and the results of each step.

What the timers stand for, and what the results are called, is in the framework's table. A timer of the kind `take`
runs while the trainer does not train: if trainers and samplers share their GPUs, these generate, else the trainer waits
for samples. Timers inside it take precedence.
"""

import re
from collections import deque
from functools import partial
from itertools import chain
from typing import Final

from rlscope.errors import ImportFileError
from rlscope.frameworks.table import Framework, PhaseKind
from rlscope.importers.importer import Importer, ImportSource, Progress, no_progress
from rlscope.importers.lines import ConsoleLine, LogFile, clean_lines
from rlscope.importers.log_clock import LogClock, open_clock
from rlscope.importers.quantities import (
    COUNTS,
    FINITE,
    MOST_STEPS,
    RefusedNumberError,
    amount,
    columns_of,
    factors_in,
    named_reals,
    real,
    seconds,
    to_ns,
    whole,
)
from rlscope.importers.rows import Tally
from rlscope.importers.sglang import STAMPED, read_engines
from rlscope.importers.spans import Spans
from rlscope.importers.steps import gpus_of, recognize_steps, runs_separately, stated_settings
from rlscope.importers.target import ImportTarget
from rlscope.importers.timers import PrintedSettings, Timers
from rlscope.trace.imported import Certainty

_HELD: Final = (PhaseKind.TAKE, PhaseKind.GENERATE, PhaseKind.UPDATE)
"""Timers whose rows depend on whether trainers and samplers share their GPUs, which may be known only at the end."""
_REMEMBERED: Final = 64
"""Lines with a time among which a copy is looked for. Where two handlers print a log, both copies are this close."""
_Span = tuple[int, int]
"""Start and end in ns."""
_ROLLOUTS: Final = "a rollout ends when its metrics are printed, and no request runs between rollouts"


class _Reader:
    """Reads the lines of one console. What depends on later lines is held."""

    def __init__(self, framework: Framework, target: ImportTarget, clock: LogClock) -> None:
        console = framework.console
        self.framework, self.console, self.target, self.clock = framework, console, target, clock
        self.trainer, self.sampler = (console.workers.get(role, role) for role in ("trainer", "sampler"))
        self.settings = PrintedSettings(framework)
        self.timers: list[Timers] = []
        self._of_actors: dict[str | None, Timers] = {}
        """Timers of the run that the lines are of, by the actor that prints them."""
        self._before: dict[str | None, Timers] = {}
        """Timers of the run before."""
        self._is_one_run = False
        """Whether actors of one run began to print timers late."""
        self.ended: set[str] = set()
        """Names of the timers that ended."""
        self.rollouts = Spans()
        self.steps: set[int] = set()
        self.engine_lines = 0
        self._printed = deque[tuple[str, str | None]](maxlen=_REMEMBERED)
        """The last lines with a time: text and actor."""
        names = "|".join(map(re.escape, sorted(factors_in(chain(*console.columns.values())))))
        self._result = re.compile(rf"(?<![\w/.])({names})\s?[:=]\s?({FINITE})" if names else r"(?!)")
        self._held: list[tuple[PhaseKind, _Span, int]] = []
        """Spans of `_HELD`, with the last version that was published."""
        self._parts: list[tuple[str, _Span]] = []
        """Parts of the update that is running."""
        self._version = 0
        """The last version that was published."""
        self._training: tuple[_Span, int] | None = None
        """The training whose results are still printed, and the version that it started from."""
        self._trainings = 0
        self._results: dict[str, float] = {}
        self._step = 0 if "number" in console.facts.groupindex else 1
        """Number of the training that is held."""

    @property
    def kinds(self) -> set[PhaseKind]:
        """Kinds of the timers that ended."""
        return {kind for name, kind in self.console.timers.items() if name in self.ended}

    @property
    def is_separate(self) -> bool:
        """Whether trainers and samplers have GPUs of their own."""
        return runs_separately(self.framework.placement, frozenset(self.ended), self.settings.config)

    def take(self, line: ConsoleLine) -> None:
        """Read one line. Raises RefusedNumberError."""
        text = line.text
        if (found := self.console.timer.search(text)) and (time_ns := self.clock.time_ns(found["ts"])) is not None:
            if not self._is_copy(line):
                self._take_timer(self._timers_of(line.actor, time_ns), found, time_ns)
        elif found := self.console.facts.search(text):
            if not (found.groupdict().get("ts") and self._is_copy(line)):
                self._take_facts(found)
        elif self.console.engine and " batch" in text and STAMPED.search(text):
            self.engine_lines += 1
        else:
            self._results.update((name, real(value)) for name, value in self._result.findall(text))
            self.settings.read(text)

    def _is_copy(self, line: ConsoleLine) -> bool:
        """Return whether a line with a time was printed before, by the same actor or without one."""
        if any(
            text == line.text and (actor == line.actor or None in (actor, line.actor)) for text, actor in self._printed
        ):
            return True
        self._printed.append((line.text, line.actor))
        return False

    def _timers_of(self, actor: str | None, time_ns: int) -> Timers:
        """Return the timers of an actor. The first actor of a run is the trainer.

        All actors of a run have printed some before its first training has ended, or the second one where the beginning
        of the log is missing. Another actor after that is of a run that was resumed, or of a further one, unless those
        before it print again. A line without an actor is the trainer's.
        """
        held = self._of_actors
        if actor is None and held:
            return next(iter(held.values()))
        if actor in self._before and not self._is_one_run:
            self._of_actors, self._is_one_run = self._before, True
            return self._before[actor]
        if actor not in held:
            lacks_beginning = any(each.unpaired for each in held.values())
            if not self._is_one_run and self._trainings >= (2 if lacks_beginning else 1):
                self._begin_again(time_ns)
                held = self._of_actors
            if held and not self.console.several_print_timers:
                held[actor] = self.timers[-1]
            else:
                self.timers.append(Timers(f"{self.trainer}-{len(held) + 1}" if held else self.trainer))
                held[actor] = self.timers[-1]
        return held[actor]

    def _begin_again(self, time_ns: int) -> None:
        """End the run that the lines were of, and leave out the time until the next one."""
        self.add_training()
        last_ns = max(each.last_ns for each in self._of_actors.values())
        if time_ns > last_ns:
            self.target.leave_out([(last_ns, time_ns)])
        self.target.note("The log has several runs, or one that was resumed. The time between them is left out.")
        self._of_actors, self._before = {}, self._of_actors
        self._trainings, self._parts = 0, []

    def _take_timer(self, timers: Timers, found: re.Match[str], time_ns: int) -> None:
        name = found["name"]
        if found["end"] is None:
            timers.start(name, time_ns)
            return
        span = timers.end(name, time_ns, seconds(found["s"]) if found["s"] else None)
        self.ended.add(name)
        kind, is_first = self.console.timers.get(name), timers.worker_id == self.trainer
        if is_first and (part := self.console.parts.get(name)):
            self._parts.append((part, span))
        if kind is PhaseKind.TRAIN and is_first:
            self.add_training()
            self._training = span, self._version
            self._trainings += 1
        elif kind is not None and kind in _HELD and is_first:
            self._hold(kind, span)
        elif kind is not None and kind not in _HELD:
            self.target.add_phase(timers.worker_id, kind, *span)

    def _hold(self, kind: PhaseKind, span: _Span) -> None:
        if kind is PhaseKind.UPDATE:
            if self._trainings or self._version < self.console.first_version:
                self._version += 1
            for part, part_span in self._parts:
                self.target.add_update(self.trainer, part, self._version, *part_span)
        self._parts = []
        self._held.append((kind, span, self._version))

    def _take_facts(self, found: re.Match[str]) -> None:
        groups, facts = found.groupdict(), named_reals(found.string[found.end() :])
        for name in factors_in(chain(*(self.console.columns.get(column, ()) for column in COUNTS))):
            amount(facts.get(name, 0.0))
        rollout_s = seconds(facts.get(self.console.rollout or "", 0.0))
        number = whole(groups["number"], MOST_STEPS) if groups.get("number") else None
        time_ns = self.clock.time_ns(groups["ts"]) if groups.get("ts") else None
        self._results.update(facts)
        if time_ns is not None:
            if rollout_s:
                self.rollouts.add(time_ns - to_ns(rollout_s), time_ns)
            if number is not None:
                self.target.add_reported(self.framework, self.trainer, number, time_ns, facts)
        if facts.keys() & set(self.console.step_ends_with):
            self._step = self._step if number is None else number
            self.add_training()

    def add_training(self) -> None:
        """Add the training that is held, with the results printed since."""
        if self._training is None:
            return
        span_ns, version = self._training
        step = self._step if self._step not in self.steps else max(self.steps) + 1
        samples = stated_settings(self.settings.config, self.framework).get("samples_per_step")
        columns = {"samples": samples, **columns_of(self._results, self.console.columns)}
        self.target.add_training(self.trainer, step, (version, version + 1), span_ns, columns)
        self.steps.add(step)
        self._step = step + 1
        self._training, self._results = None, {}

    def add_workers(self) -> None:
        """Add the workers and the settings."""
        target, config, framework = self.target, self.settings.config, self.framework
        stated = stated_settings(config, framework)
        if PhaseKind.WAIT_SAMPLES not in self.kinds:
            # Without a queue between the roles, the setting has no effect.
            stated.pop("max_staleness", None)
        target.add_config(**stated)
        role = "trainer" if self.is_separate else "colocated"
        gpus = target.options.gpus_of(role) or gpus_of(config, framework, "trainer")
        target.add_worker(self.trainer, role, gpu_count=gpus)
        if self.is_separate:
            gpus = target.options.gpus_of("sampler") or gpus_of(config, framework, "sampler")
            target.add_worker(self.sampler, "sampler", gpu_count=gpus)
        for timers in self.timers:
            if timers.worker_id != self.trainer:
                target.add_worker(timers.worker_id, "trainer", gpu_count=None)
            if timers.first_ns is not None:
                target.extend_worker(timers.worker_id, timers.first_ns, timers.last_ns)

    def add_held(self) -> None:
        """Add the rows that depend on whether trainers and samplers share GPUs."""
        target, is_separate = self.target, self.is_separate
        generates = self.sampler if is_separate else self.trainer
        waits = is_separate and PhaseKind.WAIT_SAMPLES not in self.kinds
        for kind, span, version in self._held:
            if kind is PhaseKind.UPDATE:
                if is_separate:
                    target.add_update(self.trainer, "publish", version, *span)
                target.add_update(generates, "apply", version, *span)
            elif kind is PhaseKind.GENERATE:
                target.add_phase(generates, kind, *span)
            if kind is not PhaseKind.UPDATE and (kind is PhaseKind.TAKE or waits):
                target.add_phase(self.trainer, PhaseKind.TAKE.settled(is_separate=is_separate), *span)
            if kind is not PhaseKind.TAKE:
                target.extend_worker(generates, *span)
        if is_separate:
            self.rollouts.write(generates, target, _ROLLOUTS)


def timer_console(framework: Framework) -> Importer:
    """Return the importer of a framework's console."""
    kind = f"console of {framework.title}"
    return Importer(framework.name, kind, partial(_recognize, framework), partial(_read, framework), is_console=True)


def _recognize(framework: Framework, source: ImportSource) -> bool:
    """Return whether timers are printed. A part of a log may have none of training, but the metrics that repeat all."""
    timer, kinds = framework.console.timer, framework.console.timers
    printed = [found for line in clean_lines(source.text) if (found := timer.search(line.text))]
    trains = any(found["end"] and kinds.get(found["name"]) is PhaseKind.TRAIN for found in printed)
    has_rest = source.size > len(source.head)
    return bool(printed) and (trains or has_rest or not recognize_steps(framework, source))


def _read(framework: Framework, source: ImportSource, target: ImportTarget, progress: Progress) -> None:
    """Add trainer, samplers and engines of one console. Raises ImportFileError if no timer ended."""
    clock = open_clock(source.path, framework.console.timer, target)
    if clock is None:
        raise _no_timer(source, framework)
    log, reader = LogFile(source.path, Tally(progress)), _Reader(framework, target, clock)
    for line in log:
        try:
            reader.take(line)
        except RefusedNumberError:
            log.tally.bad_lines += 1
    if not reader.ended:
        raise _no_timer(source, framework)
    reader.add_training()
    reader.add_workers()
    reader.add_held()
    _say(reader, log)
    target.add_file("console", log.tally.source_file(source.path))
    if reader.engine_lines:
        read_engines(source, target, no_progress, clock.offset_s)


def _no_timer(source: ImportSource, framework: Framework) -> ImportFileError:
    return ImportFileError.of(
        source.path,
        found="timers that start, and none that ends",
        expected=f"the console log of a {framework.title} run",
        next_step=f"Pass {framework.console.file or 'the log that has them'}.",
    )


def _say(reader: _Reader, log: LogFile) -> None:
    target, console, title = reader.target, reader.console, reader.framework.title
    target.say_origins(Certainty.RECORDED, "train_steps", "weight_updates", "activities")
    if PhaseKind.TAKE in reader.kinds and not reader.is_separate:
        rule = "GPUs generate when they are not training, saving or updating weights"
        target.say_origin("activities", Certainty.INFERRED, rule)
    if reader.steps and "number" in console.facts.groupindex:
        target.say_coverage(reader.trainer, len(reader.steps) / (max(reader.steps) - min(reader.steps) + 1))
    log.tally.bad_lines += sum(timers.unpaired for timers in reader.timers)
    if "tokens" not in console.columns:
        target.note(
            f"{title}'s console log has no token counts, so throughput is unknown. Pass its .wandb file or W&B export."
        )
    if not reader.steps:
        target.note("The log contains no finished training step.")
    if console.engine and not reader.engine_lines and reader.is_separate:
        target.note(
            "The log has no SGLang lines, so engine step times are unknown. Pass SGLang's log with --engine-log.",
            unless="engine_steps",
        )
