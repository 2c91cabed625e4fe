"""The console of slime and miles: timers of the trainer's rank 0, dictionaries of each rollout, and SGLang's lines.

`train_wait` runs whenever nothing is trained, so it also covers weight updates and checkpoints. Their timers lie inside
it and take precedence.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Final

from rlscope.errors import ImportFileError
from rlscope.frameworks import framework
from rlscope.importers.importer import Importer, ImportSource, Progress
from rlscope.importers.lines import ConsoleLine, LogClock, LogFile, clean_lines, open_clock, to_ns
from rlscope.importers.quantities import MOST_STEPS, RefusedNumberError, amount, named_reals, seconds, whole
from rlscope.importers.sglang import SGLANG_LOG, STAMPED
from rlscope.importers.target import ImportOptions, ImportTarget
from rlscope.importers.timers import Meaning, PrintedSettings, Span, Timers, add_activity, meanings
from rlscope.trace.imported import Certainty

_TABLE: Final = framework("slime")
_TIMER: Final = re.compile(_TABLE.console.timer or "")
_FACTS: Final = re.compile(
    r"\[(?P<ts>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:[.,]\d{3})?)[^\]]{0,200}\] \S+\.py:\d+ - "
    r"(?P<kind>perf|rollout|step) (?P<number>\d+): \{"
)
_PRODUCTS: Final = ("perf/actor_train_tok_per_s", "perf/actor_train_time")
"""Rate and duration whose product is the number of tokens of a step."""
TRAIN: Final = "actor_train"
UPDATE: Final = "update_weights"
WAIT: Final = "train_wait"
_COLOCATED_ONLY: Final = frozenset({"sleep", "wake_up"})
TIMER_MEANINGS: Final = meanings(_TABLE)
_TRAINER, _ROLLOUT = "actor", "rollout"


@dataclass(slots=True)
class _Run:
    """State of an import while the console is read."""

    target: ImportTarget
    settings: PrintedSettings = field(default_factory=lambda: PrintedSettings(_TABLE, "colocate"))
    timers: dict[str | None, Timers] = field(default_factory=dict[str | None, Timers])
    waits: list[Span] = field(default_factory=list[Span])
    updates: list[tuple[Span, int]] = field(default_factory=list[tuple[Span, int]])
    version: int = 0
    """The last version published."""
    trained: Span | None = None
    """The training that is held until its metrics, which are printed after it, are read."""
    step: int = 0
    numbers: dict[str, float] = field(default_factory=dict[str, float])
    steps: set[int] = field(default_factory=set[int])
    rollouts: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    engine_lines: int = 0
    is_colocated: bool = False


def _recognise(source: ImportSource) -> str | None:
    lines = [line.text for line in clean_lines(source.text)]
    timers = sum(1 for line in lines if _TIMER.search(line))
    return f"{timers} lines `Timer NAME start` or `end`" if timers else None


def _read(source: ImportSource, target: ImportTarget, options: ImportOptions, progress: Progress) -> str | None:
    """Add trainer, rollouts and engines of one console. Raises ImportFileError if it contains no training."""
    clock = open_clock(source.path, _TIMER, target, options)
    log = LogFile(source.path, progress)
    run = _Run(target)
    for line in log:
        try:
            _take_line(run, line, clock)
        except RefusedNumberError:
            log.bad_lines += 1
    _add_training(run)
    if clock is None or not run.timers:
        raise ImportFileError.of(
            source.path,
            found="no `Timer NAME start` or `Timer NAME end` line",
            expected="the console log of a slime or miles run",
            next_step="Pass the log of the whole job, which includes the trainer's lines from Ray's driver.",
        )
    _add_workers(run, options)
    _add_held(run)
    _say(run, log)
    target.add_file("console", log.source())
    if run.engine_lines:
        SGLANG_LOG.read(source, target, replace(options, utc_offset_s=clock.offset_s), lambda _bytes: None)
    return None


def _take_line(run: _Run, line: ConsoleLine, clock: LogClock | None) -> None:
    if "Timer " in line.text and clock and (timer := _TIMER.search(line.text)):
        time_ns = clock.time_ns(timer["ts"])
        if time_ns is not None:
            _take_timer(run, line.actor, timer, time_ns)
    elif "{'" in line.text and "}" in line.text and clock and (facts := _FACTS.search(line.text)):
        _take_facts(run, facts, clock.time_ns(facts["ts"]))
    elif " batch" in line.text and STAMPED.search(line.text):
        run.engine_lines += 1
    else:
        run.settings.read(line.text)


def _take_timer(run: _Run, actor: str | None, found: re.Match[str], time_ns: int) -> None:
    if actor not in run.timers:
        # A critic has timers of the same names in its own process.
        run.timers[actor] = Timers(_TRAINER if not run.timers else f"{_TRAINER}-{len(run.timers) + 1}")
    timers = run.timers[actor]
    name = found["name"]
    if found["what"] == "start":
        timers.start(name, time_ns)
        return
    span = timers.end(name, time_ns, seconds(found["s"]) if found["s"] else None)
    run.is_colocated = run.is_colocated or name in _COLOCATED_ONLY
    if timers.worker_id != _TRAINER:
        add_activity(run.target, timers.worker_id, span, {**TIMER_MEANINGS, TRAIN: Meaning("train")})
    elif name == WAIT:
        run.waits.append(span)
    elif name == UPDATE:
        # slime counts from 1: rollouts begin with version 1 of the weights.
        run.version += 1
        run.updates.append((span, run.version))
    elif name == TRAIN:
        _add_training(run)
        run.trained = span
    else:
        add_activity(run.target, _TRAINER, span, TIMER_MEANINGS)


def _take_facts(run: _Run, found: re.Match[str], time_ns: int | None) -> None:
    text = found.string[found.end() : found.string.rindex("}")]
    facts = named_reals(text)
    rollout_s = seconds(facts.get("perf/rollout_time", 0.0))
    for name in _PRODUCTS:
        amount(facts.get(name, 0.0))
    if found["kind"] == "perf" and rollout_s and time_ns is not None:
        run.rollouts.append((time_ns - to_ns(rollout_s), time_ns))
    run.numbers.update(facts)
    if time_ns is not None:
        number = whole(found["number"], MOST_STEPS)
        run.target.add_reported(_TABLE, _TRAINER, number, time_ns, facts)
    if found["kind"] == "perf" and "perf/actor_train_time" in facts:
        run.step = whole(found["number"], MOST_STEPS)
        _add_training(run)


def _add_training(run: _Run) -> None:
    """Add the training that was held, with the metrics printed since."""
    span, numbers = run.trained, run.numbers
    if span is None:
        return
    # The update after this training is printed before the metrics of the training.
    was_updated = bool(run.updates) and run.updates[-1][0].start_ns >= span.end_ns
    version_in = run.version - 1 if was_updated else run.version
    per_s = numbers.get("perf/actor_train_tok_per_s")
    step = run.step if run.step not in run.steps else max(run.steps) + 1
    run.target.add(
        "train_steps",
        {
            "worker_id": _TRAINER,
            "step": step,
            "start_ns": span.start_ns,
            "end_ns": span.end_ns,
            "version_in": version_in,
            "version_out": version_in + 1,
            "samples": run.settings.stated().get("samples_per_step"),
            "tokens": None if per_s is None else round(per_s * numbers.get("perf/actor_train_time", 0.0)),
            "loss": numbers.get("train/loss"),
            "grad_norm": numbers.get("train/grad_norm"),
            "entropy": numbers.get("train/entropy_loss"),
            "reward_mean": numbers.get("rollout/raw_reward"),
        },
    )
    run.steps.add(step)
    run.step = step + 1
    run.trained = None
    run.numbers = {}


def _add_workers(run: _Run, options: ImportOptions) -> None:
    run.is_colocated = run.is_colocated or run.settings.values.get("colocate") is True
    training = run.settings.gpus("trainer")
    run.target.add_config(**run.settings.stated())
    if run.is_colocated:
        gpus = options.gpus.get("colocated", options.gpus.get("trainer", training))
        run.target.add_worker(_TRAINER, "colocated", gpu_count=gpus)
    else:
        gpus = options.gpus.get("trainer", training)
        run.target.add_worker(_TRAINER, "trainer", gpu_count=gpus)
        sampling = options.gpus.get("sampler", run.settings.gpus("sampler"))
        run.target.add_worker(_ROLLOUT, "sampler", gpu_count=sampling)
    for timers in run.timers.values():
        if timers.worker_id != _TRAINER:
            run.target.add_worker(timers.worker_id, "trainer", gpu_count=None)
        timers.settle(run.target)


def _add_held(run: _Run) -> None:
    """Add the rows that depend on whether trainer and samplers share GPUs."""
    wait = Meaning("generate") if run.is_colocated else Meaning("wait", "samples")
    for span in run.waits:
        add_activity(run.target, _TRAINER, span, {WAIT: wait})
    for span, version in run.updates:
        if not run.is_colocated:
            run.target.add_update(_TRAINER, "publish", version, span.start_ns, span.end_ns)
        applies = _TRAINER if run.is_colocated else _ROLLOUT
        run.target.add_update(applies, "apply", version, span.start_ns, span.end_ns)
        run.target.extend_worker(applies, span.start_ns, span.end_ns)
    if not run.is_colocated:
        for start_ns, end_ns in run.rollouts:
            run.target.add_activity(_ROLLOUT, "generate", start_ns, end_ns)
            run.target.extend_worker(_ROLLOUT, start_ns, end_ns)
        for idle in _between(run.rollouts):
            add_activity(run.target, _ROLLOUT, idle, {_ROLLOUT: Meaning("wait", "requests")})


def _between(rollouts: list[tuple[int, int]]) -> Iterator[Span]:
    """Yield the gaps between rollouts, in which none runs."""
    end_ns: int | None = None
    for start_ns, ended_ns in sorted(rollouts):
        if end_ns is not None and start_ns > end_ns:
            yield Span(_ROLLOUT, end_ns, start_ns)
        end_ns = ended_ns if end_ns is None else max(end_ns, ended_ns)


def _say(run: _Run, log: LogFile) -> None:
    target = run.target
    target.say_origins(Certainty.RECORDED, "train_steps", "weight_updates", "activities")
    if run.is_colocated and run.waits:
        target.say_origin(
            "activities", Certainty.INFERRED, "GPUs generate when they are not training, saving or updating weights"
        )
    elif run.rollouts:
        target.say_origin(
            "activities",
            Certainty.INFERRED,
            "a rollout ends when its metrics are printed, and no request runs between rollouts",
        )
    if run.steps:
        target.say_coverage(_TRAINER, len(run.steps) / (max(run.steps) - min(run.steps) + 1))
    unpaired = sum(timers.unpaired for timers in run.timers.values())
    log.bad_lines += unpaired
    if not run.steps:
        target.note("The log contains no finished training step.")
    if not run.engine_lines and not run.is_colocated:
        target.note(
            "The log has no SGLang lines, so engine step times are unknown. Pass SGLang's log with --engine-log.",
            unless="engine_steps",
        )


SLIME_CONSOLE: Final = Importer("slime", "console of slime or miles", _recognise, _read)
