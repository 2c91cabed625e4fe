"""The console of NeMo-RL's GRPO, which prints a block of durations without a time after each step.

If vLLM's lines between the blocks have timestamps, a step starts at the first timestamp inside its block, which keeps
the gaps between steps visible. Otherwise the steps are laid end to end.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Final, NamedTuple

from rlscope.errors import ImportFileError
from rlscope.importers.importer import Importer, ImportSource, Progress
from rlscope.importers.lines import LogClock, LogFile, clean_lines, open_clock, to_ns
from rlscope.importers.quantities import MOST_STEPS, RefusedNumberError, amount, real, seconds, whole
from rlscope.importers.target import ImportOptions, ImportTarget, StepTimes
from rlscope.trace.imported import Certainty

_STEP: Final = re.compile(r"(?<!=)={5,}+ Step (\d+)/(\d+) ={5,}")
_TOTAL: Final = re.compile(r"• Total step time: ([\d.]+)s")
_PHASE: Final = re.compile(r"• ([\w/]+): ([\d.]+)s \([\d.]+%\)")
_VALIDATION: Final = re.compile(r"Total validation time: ([\d.]+)s")
_RESULT: Final = re.compile(r"• (Loss|Avg Reward|Avg Filtered Reward): (-?[\d.]+(?:e-?\d+)?)")
_RATE: Final = re.compile(r"- E2E \((?P<unit>Tokens|Samples)/sec(?P<each>/gpu)?\): ([\d.]+)")
_BATCH: Final = re.compile(r"Generating responses for batch of size (\d+)")
_STAMPED: Final = re.compile(r"(?:INFO|WARNING|DEBUG) (?P<ts>\d\d-\d\d \d\d:\d\d:\d\d) \[")

_SETTINGS: Final[Mapping[str, re.Pattern[str]]] = {
    "group_size": re.compile(r"'num_generations_per_prompt': (\d{1,9})\b"),
    "prompts": re.compile(r"'num_prompts_per_step': (\d{1,9})\b"),
    "total_steps": re.compile(r"'max_num_steps': (\d{1,9})\b"),
    "max_staleness": re.compile(r"'max_trajectory_age_steps': (\d{1,9})\b"),
    "gpus_per_engine": re.compile(r"'vllm_cfg': \{[^{}]*'tensor_parallel_size': (\d{1,9})\b"),
}
_CLUSTER: Final = re.compile(
    r"'cluster': \{(?:(?!'gpus_per_node')[^{}])*+'gpus_per_node': (\d{1,6})\b"
    r"(?:(?!'num_nodes')[^{}])*+'num_nodes': (\d{1,6})\b"
)
_COLOCATED: Final = re.compile(
    r"'colocated': \{'enabled': (True|False)"
    r"(?:,\s*'resources': \{'gpus_per_node': (\w{1,6}),\s*'num_nodes': (\w{1,6})\b)?"
)
_CONFIG_CHARS: Final = 256 * 1024

_NESTED: Final = frozenset(
    {
        "overlong_filter",
        "mask_sample_filter",
        "recompute_kv_scales",
        "dynamic_sampling",
        "policy_logprobs",
        "reference_logprobs",
    }
)
"""Phases timed inside another phase, like every name with a slash but one; they are never added."""
_ORDER: Final = (
    "exposed_generation",
    "data_processing",
    "prepare_for_generation/total",
    "generation",
    "reward_calculation",
    "logprob_inference_prep",
    "policy_and_reference_logprobs",
    "advantage_calculation",
    "training_prep",
    "policy_training",
    "offload_before_refit",
    "weight_sync",
)
"""Phases in program order. Validation and the checkpoint come after all other phases of the step."""
_LAST: Final = ("validation", "checkpointing")
_ACTIVITIES: Final[Mapping[str, str]] = {
    "generation": "generate",
    "reward_calculation": "reward",
    "policy_and_reference_logprobs": "logprobs",
    "checkpointing": "checkpoint",
    "validation": "eval",
}
_TRAINING: Final = "policy_training"
_UPDATES: Final = frozenset({"prepare_for_generation/total", "weight_sync"})
_GENERATES: Final = "samplers generate while the trainer waits for samples; otherwise unknown"
_BETWEEN: Final = "between steps, the trainer writes logs and files"
_CLOSES_WITHIN_RATIO: Final = 0.03
"""Largest share of the median step that the phases may leave. Above it, the log has names that this importer lacks."""
_WHOLE_GPUS_WITHIN: Final = 0.01


@dataclass(slots=True)
class _Step:
    """One step as printed on the console; durations in seconds."""

    step: int
    stamped_ns: int | None = None
    """Time of the first timestamped line inside the block."""
    total_s: float | None = None
    phases: dict[str, float] = field(default_factory=dict[str, float])
    """Durations of phases that do not overlap, by name, including `validation`."""
    results: dict[str, float] = field(default_factory=dict[str, float])
    rates: dict[tuple[str, bool], float] = field(default_factory=dict[tuple[str, bool], float])
    """Throughputs by unit and whether they are per GPU."""
    samples: int | None = None

    def missing_s(self) -> float:
        """Return the part of the step that no phase covers, in seconds."""
        return (self.total_s or 0.0) - sum(self.phases.values())


class _Worker(NamedTuple):
    worker_id: str
    role: str


_TRAINER: Final = _Worker("policy", "trainer")
_SAMPLER: Final = _Worker("generation", "sampler")
_BOTH: Final = _Worker("policy", "colocated")


def _recognise(source: ImportSource) -> str | None:
    lines = [line.text for line in clean_lines(source.text)]
    steps = sum(1 for line in lines if _STEP.search(line))
    totals = sum(1 for line in lines if _TOTAL.search(line))
    if totals:
        return f"{totals} lines `• Total step time`"
    return (
        f"{steps} lines `Step N/M`"
        if steps and any("Generating responses for batch" in line for line in lines)
        else None
    )


def _read(source: ImportSource, target: ImportTarget, options: ImportOptions, progress: Progress) -> str | None:
    """Lay out the steps of a console. Raises ImportFileError if no step has durations."""
    clock = open_clock(source.path, _STAMPED, target, options)
    log = LogFile(source.path, progress)
    config: list[str] = []
    opened = 0
    done: list[_Step] = []
    for step in _steps(log, clock, config):
        opened += 1
        if step.total_s is not None:
            done.append(step)
    if not done:
        raise ImportFileError.of(
            source.path,
            found=f"{log.lines:,} lines, none with NeMo-RL's `• Total step time: ...s`",
            expected="the console log of a NeMo-RL run with at least one finished step",
            next_step="Pass the driver's log, or name another framework with --as.",
        )
    settings = "\n".join(config)
    is_async = any("exposed_generation" in step.phases for step in done)
    workers = _workers(target, options, settings, done, is_async)
    _add_config(target, settings, is_async)
    starts_ns = _starts(done, target, clock)
    for step, start_ns in zip(done, starts_ns, strict=True):
        _lay_out(target, workers, step, start_ns)
    for end_ns, next_ns in _between(done, starts_ns):
        target.add_activity(workers[0].worker_id, "other", end_ns, next_ns)
    _say(target, workers, done, starts_ns, opened, is_async)
    target.add_file("console", log.source())
    return "async GRPO" if is_async else "GRPO"


def _steps(log: LogFile, clock: LogClock | None, config: list[str]) -> Iterator[_Step]:
    """Yield the blocks in file order, including incomplete ones. The lines before the first are kept as the config."""
    step: _Step | None = None
    kept_chars = 0
    for line in log:
        try:
            if opening := _STEP.search(line.text):
                number = whole(opening[1], MOST_STEPS)
                if step is not None:
                    yield step
                step = _Step(number)
            elif step is None:
                if kept_chars < _CONFIG_CHARS:
                    kept_chars += len(line.text)
                    config.append(line.text[:_CONFIG_CHARS])
            elif total := _TOTAL.search(line.text):
                if step.total_s is not None:
                    # The heading of a step is missing.
                    yield step
                    step = _Step(step.step + 1)
                step.total_s = seconds(total[1])
            else:
                _take(step, line.text)
                if step.stamped_ns is None and clock and not line.merged and (found := _STAMPED.search(line.text)):
                    step.stamped_ns = clock.time_ns(found["ts"])
        except RefusedNumberError:
            log.bad_lines += 1
    if step is not None:
        yield step


def _take(step: _Step, text: str) -> None:
    if "•" in text:
        if phase := _PHASE.search(text):
            name = phase[1]
            if name in _ORDER or name in _LAST or not ("/" in name or name in _NESTED):
                step.phases[name] = seconds(phase[2])
        elif validation := _VALIDATION.search(text):
            step.phases["validation"] = seconds(validation[1])
        elif result := _RESULT.search(text):
            step.results[result[1]] = real(result[2])
    elif rate := _RATE.search(text):
        step.rates[rate["unit"], rate["each"] is not None] = amount(rate[3])
    elif batch := _BATCH.search(text):
        step.samples = whole(batch[1])


def _workers(
    target: ImportTarget, options: ImportOptions, settings: str, steps: list[_Step], is_async: bool
) -> tuple[_Worker, ...]:
    cluster, colocated = _CLUSTER.search(settings), _COLOCATED.search(settings)
    gpus = int(cluster[1]) * int(cluster[2]) if cluster else _gpus_by_rates(steps)
    if not is_async or (colocated and colocated[1] == "True"):
        gpus = options.gpus.get("colocated", sum(options.gpus.values()) or gpus)
        target.add_worker(_BOTH.worker_id, _BOTH.role, gpu_count=gpus)
        return (_BOTH,)
    sampling = _sampling_gpus(colocated)
    trainer_gpus = gpus - sampling if gpus and sampling and gpus > sampling else None
    target.add_worker(_TRAINER.worker_id, _TRAINER.role, gpu_count=options.gpus.get("trainer", trainer_gpus))
    target.add_worker(_SAMPLER.worker_id, _SAMPLER.role, gpu_count=options.gpus.get("sampler", sampling))
    if trainer_gpus is None and not {"trainer", "sampler"} <= options.gpus.keys():
        target.note("The log does not state how GPUs are split between trainer and sampler. Pass --gpus")
    return (_TRAINER, _SAMPLER)


def _sampling_gpus(colocated: re.Match[str] | None) -> int | None:
    if colocated is None or not (colocated[2] or "").isdecimal():
        return None
    return int(colocated[2]) * (int(colocated[3]) if (colocated[3] or "").isdecimal() else 1)


def _gpus_by_rates(steps: list[_Step]) -> int | None:
    """Return the number of GPUs, as total throughput over per-GPU throughput; None if that is not a whole number."""
    for step in steps:
        every, each = step.rates.get(("Tokens", False)), step.rates.get(("Tokens", True))
        if every and each:
            gpus = every / each
            return round(gpus) if abs(gpus - round(gpus)) <= _WHOLE_GPUS_WITHIN * gpus else None
    return None


def _add_config(target: ImportTarget, settings: str, is_async: bool) -> None:
    found = {name: int(match[1]) for name, pattern in _SETTINGS.items() if (match := pattern.search(settings))}
    prompts, group = found.pop("prompts", None), found.get("group_size")
    if not is_async:
        found.pop("max_staleness", None)
    target.add_config(**found, samples_per_step=prompts * group if prompts and group else None)


def _starts(steps: list[_Step], target: ImportTarget, clock: LogClock | None) -> list[int]:
    """Return when each step started: at its first timestamped line, but never before the previous step ended."""
    if clock is None:
        target.clock = "relative"
    end_ns = next((step.stamped_ns for step in steps if step.stamped_ns is not None), target.relative_origin_ns)
    starts: list[int] = []
    for step in steps:
        start_ns = max(end_ns, step.stamped_ns or 0)
        starts.append(start_ns)
        end_ns = start_ns + to_ns(step.total_s or 0.0)
    return starts


def _between(steps: list[_Step], starts_ns: list[int]) -> Iterator[tuple[int, int]]:
    """Yield the end of each step and the start of the next one, if time lies between them."""
    ends_ns = [start + to_ns(step.total_s or 0.0) for step, start in zip(steps, starts_ns, strict=True)]
    return ((end, after) for end, after in zip(ends_ns, starts_ns[1:], strict=False) if after > end)


def _lay_out(target: ImportTarget, workers: tuple[_Worker, ...], step: _Step, start_ns: int) -> None:
    end_ns = start_ns + to_ns(step.total_s or 0.0)
    others = [name for name in step.phases if name not in _ORDER and name not in _LAST]
    at_ns = start_ns
    for name in (*_ORDER, *others):
        at_ns = _place(target, workers, step, name, at_ns, end_ns)
    _remember(target, workers, step, start_ns)
    # Time that no phase covers lies before the validation: most of it loads weights.
    at_ns = max(at_ns, end_ns - sum(to_ns(step.phases.get(name, 0.0)) for name in _LAST))
    for name in _LAST:
        at_ns = _place(target, workers, step, name, at_ns, end_ns)
    for worker in workers:
        target.extend_worker(worker.worker_id, start_ns, end_ns)


def _remember(target: ImportTarget, workers: tuple[_Worker, ...], step: _Step, start_ns: int) -> None:
    """Keep the parts of the step that its samples need."""
    names = _ORDER[: _ORDER.index(_TRAINING)]
    trained_ns = start_ns + sum(to_ns(step.phases.get(name, 0.0)) for name in names)
    generated_ns = start_ns + sum(
        to_ns(step.phases.get(name, 0.0)) for name in names[: names.index("reward_calculation")]
    )
    is_synchronous = "exposed_generation" not in step.phases
    target.steps[step.step] = StepTimes(generated_ns, trained_ns, step.step - 1, is_synchronous)
    target.samplers_id = workers[-1].worker_id


def _place(
    target: ImportTarget, workers: tuple[_Worker, ...], step: _Step, name: str, start_ns: int, limit_ns: int
) -> int:
    """Add the rows of one phase and return its end, which is never after the end of the step."""
    end_ns = min(limit_ns, start_ns + to_ns(step.phases.get(name, 0.0)))
    if end_ns <= start_ns:
        return start_ns
    owner, sampler = workers[0], workers[-1]
    if name == _TRAINING:
        target.add("train_steps", {**_train_step(owner, step), "start_ns": start_ns, "end_ns": end_ns})
    elif name in _UPDATES:
        is_after = name == "weight_sync"
        version = step.step if is_after else step.step - 1
        if len(workers) == 2:
            target.add_update(owner.worker_id, "publish", version, start_ns, end_ns)
        target.add_update(sampler.worker_id, "apply", version, start_ns, end_ns)
    elif name == "exposed_generation" and len(workers) == 2:
        target.add_activity(owner.worker_id, "wait", start_ns, end_ns, "samples")
        target.add_activity(sampler.worker_id, "generate", start_ns, end_ns)
    else:
        activity = "generate" if name == "exposed_generation" else _ACTIVITIES.get(name, "other")
        target.add_activity(owner.worker_id, activity, start_ns, end_ns)
        if name == "validation" and len(workers) == 2:
            target.add_activity(sampler.worker_id, activity, start_ns, end_ns)
    return end_ns


def _train_step(owner: _Worker, step: _Step) -> dict[str, object]:
    rate = step.rates.get(("Tokens", False))
    samples_rate = step.rates.get(("Samples", False))
    total_s = step.total_s or 0.0
    return {
        "worker_id": owner.worker_id,
        "step": step.step,
        "version_in": step.step - 1,
        "version_out": step.step,
        "samples": step.samples or (None if samples_rate is None else round(samples_rate * total_s)),
        "tokens": None if rate is None else round(rate * total_s),
        "loss": step.results.get("Loss"),
        "reward_mean": step.results.get("Avg Reward", step.results.get("Avg Filtered Reward")),
    }


def _say(
    target: ImportTarget,
    workers: tuple[_Worker, ...],
    steps: list[_Step],
    starts_ns: list[int],
    opened: int,
    is_async: bool,
) -> None:
    target.say_origins(Certainty.PLACED, "activities", "train_steps", "weight_updates")
    rules = [_GENERATES] if is_async and len(workers) == 2 else []
    rules += [_BETWEEN] if any(_between(steps, starts_ns)) else []
    if rules:
        target.say_origin("activities", Certainty.INFERRED, "; ".join(rules))
    numbers = {step.step for step in steps}
    expected = max(opened - (1 if opened > len(steps) else 0), max(numbers) - min(numbers) + 1)
    for worker in workers:
        target.say_coverage(worker.worker_id, min(1.0, len(numbers) / expected))
    plain = [step for step in steps if "validation" not in step.phases] or steps
    if median(abs(step.missing_s()) / (step.total_s or 1.0) for step in plain) > _CLOSES_WITHIN_RATIO:
        target.note("The phases do not add up to the step times; this NeMo-RL release may use other names.")
    if not any(rates for step in steps if (rates := step.rates)):
        target.note("The log has no token counts per step, so throughput is unknown.")
    _say_gaps(target, steps, starts_ns)


def _say_gaps(target: ImportTarget, steps: list[_Step], starts_ns: list[int]) -> None:
    if not any(step.stamped_ns for step in steps):
        target.note("The log has no timestamps: steps are placed end to end, and time between steps is missing.")
        return
    between_s = sum(after - before for before, after in _between(steps, starts_ns)) / 1e9
    target.note(
        f"Steps start at vLLM's first timestamp inside them, to the second. {between_s:,.0f} s lie between steps,"
        " where NeMo-RL measures nothing (it writes logs and train_data_step files there): other recorded activity."
    )


NEMO_RL_CONSOLE: Final = Importer("nemo-rl", "NeMo-RL console", _recognise, _read)
