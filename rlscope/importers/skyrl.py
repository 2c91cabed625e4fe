"""SkyRL's console: the start and end of each trainer timer, with timestamps to the millisecond."""

import re
from dataclasses import dataclass, field
from typing import Final

from rlscope.errors import ImportFileError
from rlscope.frameworks import framework
from rlscope.importers.importer import Importer, ImportSource, Progress
from rlscope.importers.lines import LogFile, clean_lines, open_clock
from rlscope.importers.quantities import RefusedNumberError, named_reals, real, seconds, whole
from rlscope.importers.target import ImportOptions, ImportTarget
from rlscope.importers.timers import Meaning, PrintedSettings, Span, Timers, add_activity, meanings
from rlscope.trace.imported import Certainty

_TABLE: Final = framework("skyrl")
_TIMER: Final = re.compile(_TABLE.console.timer or "")
_BATCH: Final = re.compile(r"batch_num_seq: (\d+)")
_RESULTS: Final = re.compile(r"avg_final_rewards: (-?[\d.]+(?:e-?\d+)?)")
_BUFFER: Final = "wait_for_generation_buffer"
_GENERATE: Final = "generate"
_TRAIN: Final = "policy_train"
_UPDATES: Final = frozenset({"sync_weights", "sync_weights_to_inference_engines"})
_MEANINGS: Final = meanings(_TABLE)
_POLICY, _ENGINES = "policy", "engines"


@dataclass(slots=True)
class _Run:
    """State of an import while the console is read."""

    target: ImportTarget
    settings: PrintedSettings = field(
        default_factory=lambda: PrintedSettings(_TABLE, "colocate_all", "max_staleness_steps")
    )
    timers: Timers = field(default_factory=lambda: Timers(_POLICY))
    generations: list[Span] = field(default_factory=list[Span])
    updates: list[tuple[Span, int]] = field(default_factory=list[tuple[Span, int]])
    is_async: bool = False
    version: int = 0
    steps: int = 0
    reward_mean: float | None = None
    results: dict[str, float] = field(default_factory=dict[str, float])
    samples: int = 0
    trained: Span | None = None
    trained_on: int = 0
    """Version of the weights with which the held training started."""


def _recognise(source: ImportSource) -> str | None:
    timers = sum(1 for line in clean_lines(source.text) if _TIMER.search(line.text))
    return f"{timers} lines `Started:` or `Finished:`" if timers else None


def _read(source: ImportSource, target: ImportTarget, options: ImportOptions, progress: Progress) -> str | None:
    """Add the trainer and what it logs about its engines. Raises ImportFileError if no timer finished."""
    clock = open_clock(source.path, _TIMER, target, options)
    log = LogFile(source.path, progress)
    run = _Run(target)
    finished = 0
    for line in log:
        found = _TIMER.search(line.text) if "ed: '" in line.text else None
        time_ns = clock.time_ns(found["ts"]) if found and clock else None
        try:
            if found is None or time_ns is None:
                _take_other(run, line.text)
            elif found["what"] == "Started":
                run.timers.start(found["name"], time_ns)
            else:
                cost_s = seconds(found["s"]) if found["s"] else None
                _take_span(run, run.timers.end(found["name"], time_ns, cost_s))
                finished += 1
        except RefusedNumberError:
            log.bad_lines += 1
    if not finished:
        raise ImportFileError.of(
            source.path,
            found="no `Finished: 'NAME', time cost: ...s` line",
            expected="the console log of a SkyRL run",
            next_step="Pass the log of the entry point, which Ray's driver prints.",
        )
    _add_training(run)
    _add_workers(run, options)
    _add_held(run)
    log.bad_lines += run.timers.unpaired
    _say(run)
    target.add_file("console", log.source())
    return "asynchronous" if run.is_async else "synchronous"


def _take_other(run: _Run, text: str) -> None:
    if "avg_final_rewards" in text and (reward := _RESULTS.search(text)):
        run.reward_mean = real(reward[1])
    elif "'policy_loss'" in text or "'final_loss'" in text:
        run.results = named_reals(text)
        _add_training(run)
    elif "batch_num_seq" in text and (batch := _BATCH.search(text)):
        run.samples = whole(batch[1])
    else:
        run.settings.read(text)


def _take_span(run: _Run, span: Span) -> None:
    if span.name == _GENERATE:
        run.generations.append(span)
    elif span.name == _TRAIN:
        _add_training(run)
        run.trained, run.trained_on = span, run.version
        run.steps += 1
    elif span.name in _UPDATES:
        if run.steps:
            run.version += 1
        run.updates.append((span, run.version))
    else:
        run.is_async = run.is_async or span.name == _BUFFER
        add_activity(run.target, _POLICY, span, _MEANINGS)


def _add_training(run: _Run) -> None:
    """Add the training that was held until its results were printed, or until the next one ended without them."""
    if run.trained is None:
        return
    run.target.add(
        "train_steps",
        {
            "worker_id": _POLICY,
            "step": run.steps,
            "start_ns": run.trained.start_ns,
            "end_ns": run.trained.end_ns,
            "version_in": run.trained_on,
            "version_out": run.trained_on + 1,
            "samples": run.samples or None,
            "loss": run.results.get("policy_loss", run.results.get("final_loss")),
            "grad_norm": run.results.get("grad_norm", run.results.get("raw_grad_norm")),
            "entropy": run.results.get("policy_entropy"),
            "reward_mean": run.reward_mean,
        },
    )
    run.trained, run.reward_mean, run.results = None, None, {}


def _add_workers(run: _Run, options: ImportOptions) -> None:
    training = run.settings.gpus("trainer")
    cap = run.settings.values.get("max_staleness_steps") if run.is_async else None
    run.target.add_config(max_staleness=cap, **run.settings.stated())
    if _is_separate(run):
        gpus = options.gpus.get("trainer", training)
        run.target.add_worker(_POLICY, "trainer", gpu_count=gpus)
        sampling = options.gpus.get("sampler", run.settings.gpus("sampler"))
        run.target.add_worker(_ENGINES, "sampler", gpu_count=sampling)
    else:
        gpus = options.gpus.get("colocated", options.gpus.get("trainer", training))
        run.target.add_worker(_POLICY, "colocated", gpu_count=gpus)
    run.timers.settle(run.target)


def _is_separate(run: _Run) -> bool:
    return run.is_async or run.settings.values.get("colocate_all") is False


def _add_held(run: _Run) -> None:
    """Add the rows that depend on whether trainer and engines share GPUs."""
    is_separate = _is_separate(run)
    generates = _ENGINES if is_separate else _POLICY
    for span in run.generations:
        add_activity(run.target, generates, span, {_GENERATE: Meaning("generate")})
        run.target.extend_worker(generates, span.start_ns, span.end_ns)
        if is_separate and not run.is_async:
            add_activity(run.target, _POLICY, span, {_GENERATE: Meaning("wait", "samples")})
    for span, version in run.updates:
        if is_separate:
            run.target.add_update(_POLICY, "publish", version, span.start_ns, span.end_ns)
        run.target.add_update(generates, "apply", version, span.start_ns, span.end_ns)
        run.target.extend_worker(generates, span.start_ns, span.end_ns)


def _say(run: _Run) -> None:
    run.target.say_origins(Certainty.RECORDED, "train_steps", "weight_updates", "activities")
    run.target.note(
        "SkyRL's console log has no token counts, so throughput is unknown. Pass its .wandb file or W&B export."
    )
    if not run.steps:
        run.target.note("The log contains no finished training step.")


SKYRL_CONSOLE: Final = Importer("skyrl", "SkyRL console", _recognise, _read)
