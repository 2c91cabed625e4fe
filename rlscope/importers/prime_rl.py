"""A prime-rl run folder: metrics.jsonl of trainer and orchestrator, the episodes under rollouts/, configs and logs.

prime-rl writes a row of metrics.jsonl at the end of the work that it measures, so phases are laid out before the time
of the row. Episodes have the wall-clock times of each of their model calls. See `src/prime_rl/monitors/file.py` of
prime-rl.
"""

import re
import tomllib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import reduce
from pathlib import Path
from typing import Any, Final, cast

from rlscope.errors import ImportFileError
from rlscope.frameworks import framework
from rlscope.frameworks.table import PhaseKind
from rlscope.importers.importer import Importer, ImportSource, Progress, open_source
from rlscope.importers.lines import records_of, to_ns
from rlscope.importers.quantities import (
    LATEST_S,
    LONGEST_S,
    MOST,
    MOST_STEPS,
    RefusedNumberError,
    amount,
    columns_of,
    number,
    whole,
)
from rlscope.importers.rows import items, mapping
from rlscope.importers.spans import Spans
from rlscope.importers.step_rows import INFERRED_GENERATION, UNKNOWN_SAMPLERS
from rlscope.importers.steps import gpus_of, phase_value, stated_settings, whole_ratio
from rlscope.importers.target import ImportOptions, ImportTarget
from rlscope.importers.vllm import VLLM_LOG
from rlscope.input_file import read_regular
from rlscope.trace.imported import Certainty

_METRICS: Final = "metrics.jsonl"
_STEP_FOLDER: Final = re.compile(r"step_(\d+)$")
_TRAINER, _ORCHESTRATOR, _INFERENCE = "trainer", "orchestrator", "inference"
_TABLE: Final = framework("prime-rl")
_PACKING: Final = ("time/pack", *_TABLE.phases["sampler"].known_by)
"""Metrics of an orchestrator's row that ends a batch."""
_LOGS: Final = ("logs/latest/inference.log", "logs/inference.log", "logs/inference.stdout")
_CONFIGS: Final = ("*.toml", "config/*.toml", "configs/*.toml", "control/*.toml")
_FITS_WITHIN: Final = 1.02
_FITS_WITHIN_S: Final = 0.05
"""Tolerance: phases lie inside the step if their sum exceeds it by no more than this."""
_FINISH_REASONS: Final[Mapping[str, str]] = {"stop": "stop", "tool_calls": "stop", "length": "length"}


@dataclass(slots=True)
class _Run:
    """State of an import while the files of a run are read."""

    target: ImportTarget
    taken: dict[int, tuple[int, int]] = field(default_factory=dict[int, tuple[int, int]])
    """By step: when the trainer received the batch, and the last version published before that."""
    facts: dict[int, dict[str, float]] = field(default_factory=dict[int, dict[str, float]])
    """Metrics from rows without times, by step, until the time of the step is read."""
    published: int | None = None
    trainer_gpus: int | None = None
    trainer_end_ns: int | None = None
    waited: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    """When the trainer waited for samples."""
    updates: list[tuple[int, int, int]] = field(default_factory=list[tuple[int, int, int]])
    """Versions that the trainer published, and when."""
    knows_inference: bool = False
    """Whether the files show what the inference engines did."""
    steps: set[int] = field(default_factory=set[int])
    phases_inside: int = 0
    phases_before: int = 0
    engine: str = _INFERENCE
    in_flight: Spans = field(default_factory=Spans)
    trained: set[int] = field(default_factory=set[int])
    """Hashes of the traces that were trained on."""
    samples: int = 0


def _recognise(source: ImportSource) -> str | None:
    folder = source.path
    if folder.is_dir():
        metrics = folder / _METRICS
        found = _rows_of(open_source(metrics).text) if metrics.is_file() else None
        if found is None and (folder / "rollouts").is_dir():
            steps = sum(1 for path in (folder / "rollouts").glob("step_*") if (path / "train").is_dir())
            return f"rollouts of {steps} steps" if steps else None
        return found
    return _rows_of(source.text) if folder.suffix == ".jsonl" else None


def _rows_of(text: str) -> str | None:
    rows = [line for line in text.splitlines() if '"time":' in line and '"step":' in line]
    trainer = sum(1 for row in rows if any(f'"{name}"' in row for name in _TABLE.phases[_TRAINER].known_by))
    orchestrator = sum(1 for row in rows if any(f'"{name}"' in row for name in _PACKING))
    if not trainer and not orchestrator:
        return None
    return f"{trainer} rows of a trainer and {orchestrator} of an orchestrator"


def _read(source: ImportSource, target: ImportTarget, options: ImportOptions, progress: Progress) -> str | None:
    """Add everything that the folder records. Raises ImportFileError if it has neither steps nor episodes."""
    folder = source.path if source.path.is_dir() else source.path.parent
    run = _Run(target)
    settings = _settings(folder) if source.path.is_dir() else {}
    metrics = folder / _METRICS if source.path.is_dir() else source.path
    if metrics.is_file():
        _read_metrics(run, metrics, progress)
    _add_workers(run, options, settings)
    if source.path.is_dir():
        _read_inference(run, folder, options, progress)
        _read_rollouts(run, folder / "rollouts", progress)
    if not (run.knows_inference or run.samples or target.engines or target.knows_samplers):
        _infer_inference(run)
    if not run.steps and not run.samples and not target.rows_of("activities"):
        raise ImportFileError.of(
            source.path,
            found="no row with time/forward_backward or time/pack, and no episode under rollouts/",
            expected="the output folder of a prime-rl run with its file monitor on",
            next_step="Pass the folder that holds metrics.jsonl (monitors.file is on by default).",
        )
    _say(run)
    return "broadcast inside the step" if run.phases_inside >= run.phases_before else "broadcast before the step"


def _settings(folder: Path) -> dict[str, int]:
    """Return the whole numbers in the configs beside the metrics, in any table; the first file that has one wins."""
    found: dict[str, int] = {}
    for path in (path for pattern in _CONFIGS for path in sorted(folder.glob(pattern))):
        with suppress(OSError, ValueError, RecursionError):
            _take_settings(tomllib.loads(read_regular(path).decode("utf-8")), found)
    return found


def _take_settings(table: Mapping[str, Any], found: dict[str, int]) -> None:
    for name, value in table.items():
        if isinstance(value, dict):
            _take_settings(cast("dict[str, Any]", value), found)
        elif isinstance(value, int):
            found.setdefault(name, value)


def _add_workers(run: _Run, options: ImportOptions, settings: Mapping[str, int]) -> None:
    run.target.add_config(**stated_settings(settings, _TABLE))
    trainer = options.gpus.get("trainer", run.trainer_gpus or gpus_of(settings, _TABLE, "trainer"))
    run.target.add_worker(_TRAINER, "trainer", gpu_count=trainer)
    sampler = options.gpus.get("sampler", gpus_of(settings, _TABLE, "sampler"))
    run.target.add_worker(_INFERENCE, "sampler", gpu_count=sampler)


# Metrics


def _read_metrics(run: _Run, path: Path, progress: Progress) -> None:
    for file, row in records_of(path, run.target, progress):
        try:
            _take_row(run, whole(row.get("step"), MOST_STEPS), to_ns(amount(row.get("time"), LATEST_S)), row)
        except RefusedNumberError:
            file.bad_lines += 1


def _take_row(run: _Run, step: int, time_ns: int, row: Mapping[str, Any]) -> None:
    values = {name: value for name in row if (value := number(row[name], MOST)) is not None}
    is_of_trainer = _is_of(_TRAINER, row)
    is_batch = not is_of_trainer and any(name in row for name in _PACKING)
    run.target.add_reported(_TABLE, _ORCHESTRATOR if is_batch else _TRAINER, step, time_ns, values)
    if is_of_trainer:
        _add_training_step(run, step, time_ns, row, values)
    elif is_batch:
        _add_batch(run, step, time_ns, row)
    else:
        _keep_facts(run, step, values)


def _is_of(worker_id: str, row: Mapping[str, Any]) -> bool:
    return any(name in row for name in _TABLE.phases[worker_id].known_by)


def _durations(worker_id: str, row: Mapping[str, Any]) -> dict[PhaseKind, float]:
    """Return the seconds of a row by kind of phase; 0 for phases that it lacks. Raises RefusedNumberError."""
    process = _TABLE.phases[worker_id]
    values = {name: amount(row[name], LONGEST_S) for name in process.names if row.get(name) is not None}
    return {phase.kind: phase_value(phase, values) or 0.0 for phase in process.order}


def _seconds(row: Mapping[str, Any], *names: str) -> float:
    """Return the first of these that the row has; 0 if it has none. Raises RefusedNumberError."""
    stated = next((row[name] for name in names if row.get(name) is not None), 0.0)
    return max(0.0, amount(stated, LONGEST_S if names[0].startswith("time/") else MOST))


def _keep_facts(run: _Run, step: int, values: Mapping[str, float]) -> None:
    ratio = _TABLE.phases[_TRAINER].gpu_ratio or ("", "")
    names = {*ratio, *(name for columns in _TABLE.columns.values() for name in columns)}
    facts = {name: values[name] for name in names & values.keys()}
    if facts:
        run.facts.setdefault(step, {}).update(facts)
    every, each = (facts.get(name) for name in ratio)
    if run.trainer_gpus is None and every and each:
        run.trainer_gpus = whole_ratio(every / each)


def _add_training_step(run: _Run, step: int, time_ns: int, row: Mapping[str, Any], values: Mapping[str, float]) -> None:
    """Lay out a step before the time of its row. Broadcast and checkpoint lie inside it, or before it as in 2025."""
    _keep_facts(run, step, values)
    durations = _durations(_TRAINER, row)
    step_s = _seconds(row, *_TABLE.phases[_TRAINER].step)
    publish_s, save_s = durations[PhaseKind.UPDATE], durations[PhaseKind.CHECKPOINT]
    is_inside = sum(durations.values()) <= step_s * _FITS_WITHIN + _FITS_WITHIN_S
    start_ns = time_ns - to_ns(step_s)
    if run.trainer_end_ns is not None:
        # Two kinds of clocks are in use and rows are written a little late, so make sure that steps never overlap.
        start_ns = max(start_ns, run.trainer_end_ns)
    at_ns = start_ns
    if is_inside:
        run.phases_inside += publish_s + save_s > 0
    else:
        run.phases_before += 1
        earliest_ns = run.trainer_end_ns or 0
        at_ns = _publish_and_save(run, step, max(earliest_ns, start_ns - to_ns(publish_s + save_s)), durations)
    first_ns = min(start_ns, at_ns)
    waited_ns = max(at_ns, start_ns)
    at_ns = _act(run, _TRAINER, PhaseKind.WAIT_SAMPLES, waited_ns, to_ns(durations[PhaseKind.WAIT_SAMPLES]))
    run.waited.append((waited_ns, at_ns))
    version = run.published if run.published is not None else step - 1
    run.taken[step] = (at_ns, version)
    for kind in (PhaseKind.OTHER, PhaseKind.LOGPROBS):
        at_ns = _act(run, _TRAINER, kind, at_ns, to_ns(durations[kind]))
    trained_ns = at_ns + to_ns(durations[PhaseKind.TRAIN])
    _add_optimizer_step(run, step, (at_ns, trained_ns), (version, step if is_inside and publish_s else version))
    at_ns = _publish_and_save(run, step, trained_ns, durations) if is_inside else trained_ns
    run.trainer_end_ns = max(time_ns, at_ns)
    run.target.extend_worker(_TRAINER, first_ns, run.trainer_end_ns)
    run.steps.add(step)


def _publish_and_save(run: _Run, version: int, start_ns: int, durations: Mapping[PhaseKind, float]) -> int:
    """Add a publication and a checkpoint, and return their end."""
    at_ns, publish_ns = start_ns, to_ns(durations[PhaseKind.UPDATE])
    if publish_ns > 0:
        at_ns += publish_ns
        run.target.add_update(_TRAINER, "publish", version, start_ns, at_ns)
        run.updates.append((version, start_ns, at_ns))
        run.published = version
    return _act(run, _TRAINER, PhaseKind.CHECKPOINT, at_ns, to_ns(durations[PhaseKind.CHECKPOINT]))


def _add_optimizer_step(run: _Run, step: int, span_ns: tuple[int, int], versions: tuple[int, int]) -> None:
    facts = run.facts.pop(step, {})
    batch = run.facts.pop(-step - 1, {})
    run.target.add(
        "train_steps",
        {
            "worker_id": _TRAINER,
            "step": step,
            "start_ns": span_ns[0],
            "end_ns": span_ns[1],
            "version_in": versions[0],
            "version_out": versions[1],
            "samples": int(batch.get("samples", 0)) or None,
            "tokens": int(batch.get("tokens", 0)) or None,
            **columns_of(facts, _TABLE.columns),
        },
    )


def _act(run: _Run, worker: str, kind: PhaseKind, start_ns: int, length_ns: int) -> int:
    """Add an activity and return its end."""
    run.target.add_phase(worker, kind, start_ns, start_ns + length_ns)
    return start_ns + max(0, length_ns)


def _add_batch(run: _Run, step: int, time_ns: int, row: Mapping[str, Any]) -> None:
    """Add the orchestrator's metrics of a batch: waits, the tokens to train on, and in files of 2025 the generation."""
    run.target.add_worker(_ORCHESTRATOR, "controller", gpu_count=0)
    step_s = _seconds(row, *_TABLE.phases[_ORCHESTRATOR].step)
    held, durations = _durations(_ORCHESTRATOR, row), _durations("sampler", row)
    wait_s = held[PhaseKind.WAIT_CAP] or durations[PhaseKind.WAIT_CAP]
    update_s, generate_s = durations[PhaseKind.UPDATE], durations[PhaseKind.GENERATE]
    after_s = held[PhaseKind.OTHER] + durations[PhaseKind.CHECKPOINT]
    if generate_s:
        at_ns = time_ns - to_ns(max(step_s, wait_s + update_s + generate_s))
        at_ns = _act(run, _ORCHESTRATOR, PhaseKind.WAIT_CAP, at_ns, to_ns(wait_s))
        updated_ns = at_ns + to_ns(update_s)
        version = int(_seconds(row, "progress/ckpt_step")) if "progress/ckpt_step" in row else step
        if update_s:
            run.target.add_update(_INFERENCE, "apply", version, at_ns, updated_ns)
        run.knows_inference = True
        end_ns = _act(run, _INFERENCE, PhaseKind.GENERATE, updated_ns, to_ns(generate_s))
        run.target.extend_worker(_INFERENCE, at_ns, end_ns)
    else:
        _act(run, _ORCHESTRATOR, PhaseKind.WAIT_CAP, time_ns - to_ns(after_s + wait_s), to_ns(wait_s))
    run.target.extend_worker(_ORCHESTRATOR, time_ns - to_ns(max(step_s, wait_s)), time_ns)
    tokens = _seconds(row, "progress/input_tokens") + _seconds(row, "progress/output_tokens")
    # Stored under a number that no step has, to keep them apart from the trainer's own metrics.
    run.facts[-step - 1] = {
        "tokens": tokens or _seconds(row, "progress/tokens"),
        "samples": _seconds(row, "progress/rollouts", "progress/samples"),
    }


# Inference


def _read_inference(run: _Run, folder: Path, options: ImportOptions, progress: Progress) -> None:
    log = next((folder / name for name in _LOGS if (folder / name).is_file()), None)
    if log is None or VLLM_LOG.recognise(open_source(log)) is None:
        run.target.note(
            "No inference.log found, so engine step times are unknown. Pass it with --engine-log.",
            unless="engine_steps",
        )
        return
    VLLM_LOG.read(open_source(log), run.target, options, progress)
    if len(run.target.engines) == 1:
        run.engine = run.target.engines[0]
    else:
        run.target.note("No file states which engine answered a model call, so there are no results by engine.")


def _infer_inference(run: _Run) -> None:
    """Add what the trainer's rows imply: engines generate while it waits for samples, and apply what it publishes."""
    if not run.waited or run.trainer_end_ns is None:
        return
    run.target.extend_worker(_INFERENCE, run.waited[0][0], run.trainer_end_ns)
    for span in run.waited:
        run.target.add_phase(_INFERENCE, PhaseKind.GENERATE, *span)
    for update in run.updates:
        run.target.add_update(_INFERENCE, "apply", *update)
    run.target.say_origin("activities", Certainty.INFERRED, INFERRED_GENERATION)
    run.target.note(UNKNOWN_SAMPLERS)


# Rollouts


def _read_rollouts(run: _Run, folder: Path, progress: Progress) -> None:
    """Add the episodes that were trained on, then those that only arrived."""
    steps = sorted((int(found[1]), path) for path in folder.glob("step_*") if (found := _STEP_FOLDER.search(path.name)))
    last_trained = -1
    for kind in ("effective", "all"):
        for step, path in steps:
            traces = path / "train" / kind / "traces.jsonl"
            for file, episode in records_of(traces, run.target, progress) if traces.is_file() else ():
                last_trained = step if kind == "effective" else last_trained
                try:
                    _add_episode(run, episode, step, is_trained=kind == "effective", is_over=step <= last_trained)
                except RefusedNumberError:
                    file.bad_lines += 1
    if run.samples and not run.target.rows_of("engine_steps"):
        run.in_flight.write(run.engine, run.target)


def _add_episode(run: _Run, episode: Mapping[str, Any], step: int, *, is_trained: bool, is_over: bool) -> None:
    """Add the trainable traces of an episode, except those that were added before."""
    policy = _inside(episode, "run", "work", "policy")
    group = _inside(episode, "group").get("id")
    for trace in _objects(episode.get("traces")):
        name = trace.get("id")
        if name is None or _inside(trace, "agent").get("trainable") is False:
            continue
        key = hash(str(name))
        if key in run.trained:
            continue
        if is_trained:
            run.trained.add(key)
        end_ns = _add_calls(run, trace, str(name), group, policy)
        if end_ns is None:
            continue
        run.samples += 1
        queued_ns = max(
            end_ns, *(_time_ns(_inside(trace, "timing", part), "end") or 0 for part in ("scoring", "finalize"))
        )
        delivery = {"sample_id": str(name), "worker_id": _TRAINER, "queued_ns": queued_ns, "reward": _reward(trace)}
        if is_trained:
            taken_ns, version = run.taken.get(step, (queued_ns, step - 1))
            known = {"outcome": "trained", "step": step, "consumer_version": version, "taken_ns": taken_ns}
            # The orchestrator packs a batch before its step begins, but on another clock.
            run.target.add("deliveries", {**delivery, **known, "queued_ns": min(queued_ns, taken_ns)})
        elif is_over:
            run.target.add("deliveries", {**delivery, "outcome": _why_not(episode), "taken_ns": queued_ns})


def _add_calls(run: _Run, trace: Mapping[str, Any], name: str, group: object, policy: Mapping[str, Any]) -> int | None:
    """Add a trace's model calls as segments and return the end of the last; None if the trace has no calls."""
    last_ns: int | None = None
    segment = 0
    for call in _objects(trace.get("calls")):
        span = _inside(call, "time")
        start_ns, end_ns = _time_ns(span, "start"), _time_ns(span, "end")
        usage = _inside(call, "usage")
        if end_ns is None or not isinstance(output := usage.get("completion_tokens"), int):
            continue
        cached = whole(usage.get("cached_input_tokens") or 0)
        run.target.add(
            "samples",
            {
                "sample_id": name,
                "segment": segment,
                "group_id": None if group is None else str(group),
                "worker_id": run.engine,
                "submitted_ns": start_ns,
                "finished_ns": end_ns,
                "prompt_tokens": whole(usage.get("prompt_tokens") or 0) + cached,
                "output_tokens": output,
                **_versions(policy, output),
                "finish_reason": _FINISH_REASONS.get(str(call.get("finish_reason"))),
                "cached_tokens": cached,
            },
        )
        run.in_flight.add(start_ns, end_ns)
        run.target.extend_worker(run.engine, start_ns or end_ns, end_ns)
        segment += 1
        last_ns = end_ns if last_ns is None else max(last_ns, end_ns)
    return last_ns


def _versions(policy: Mapping[str, Any], output_tokens: int) -> dict[str, object]:
    """Return the versions of a call. If its episode spans several versions, only the first is certain."""
    start, end = policy.get("start"), policy.get("end")
    if not isinstance(start, int):
        return {"versions": [], "version_source": "admission"}
    runs = [{"version": start, "start": 0, "end": output_tokens}] if output_tokens else []
    return {"versions": runs, "version_source": "segment" if start == end else "admission"}


def _why_not(episode: Mapping[str, Any]) -> str:
    errors = " ".join(f"{error.get('type')} {error.get('message')}" for error in _objects(episode.get("errors")))
    return "dropped_stale" if re.search(r"cancel|stale|off.policy", errors, re.IGNORECASE) else "filtered"


def _reward(trace: Mapping[str, Any]) -> float | None:
    scores = [
        amount(reward["score"]) * amount(reward.get("weight") or 1.0)
        for reward in _objects(list(_inside(trace, "rewards").values()))
        if isinstance(reward.get("score"), int | float)
    ]
    return sum(scores) if scores else None


def _inside(record: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """Return the object under these names; empty if there is none."""
    return reduce(lambda found, name: mapping(found.get(name)), names, dict(record))


def _objects(value: object) -> list[dict[str, Any]]:
    return [mapping(item) for item in items(value) if isinstance(item, dict)]


def _time_ns(span: Mapping[str, Any], name: str) -> int | None:
    seconds = number(span.get(name), LATEST_S)
    return to_ns(seconds) if seconds else None


def _say(run: _Run) -> None:
    target = run.target
    target.say_origins(Certainty.PLACED, "activities", "train_steps", "weight_updates")
    target.say_origins(Certainty.RECORDED, "samples", "deliveries")
    if run.steps:
        target.say_coverage(_TRAINER, len(run.steps) / (max(run.steps) - min(run.steps) + 1))
    if run.samples:
        target.note("prime-rl does not record unfinished episodes, so work lost in flight is missing.")
    else:
        target.note("No episodes under rollouts/, so sample lengths and staleness are unknown.")


PRIME_RL: Final = Importer("prime-rl", "prime-rl run folder", _recognise, _read)
