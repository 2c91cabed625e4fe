"""A prime-rl output folder: metrics.jsonl of trainer and orchestrator, the episodes under rollouts/, configs and logs.

The metrics are read with the framework's table, as those of any other file are. Episodes have the wall-clock times of
each of their model calls. See `src/prime_rl/monitors/file.py` of prime-rl.
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
from rlscope.importers.importer import Importer, ImportSource, Progress, open_source
from rlscope.importers.lines import records_of
from rlscope.importers.quantities import RefusedNumberError, amount, epoch_ns, whole
from rlscope.importers.rows import items, mapping
from rlscope.importers.spans import Spans
from rlscope.importers.step_rows import fill
from rlscope.importers.steps import gpus_of, read_steps, recognize_steps, stated_settings
from rlscope.importers.target import ImportTarget, version_runs
from rlscope.importers.vllm import VLLM_LOG
from rlscope.input_file import read_regular
from rlscope.trace.imported import Certainty

_METRICS: Final = "metrics.jsonl"
_STEP_FOLDER: Final = re.compile(r"step_(\d+)$")
_TRAINER, _SAMPLER = "trainer", "sampler"
_TABLE: Final = framework("prime-rl")
_LOGS: Final = ("logs/latest/inference.log", "logs/inference.log", "logs/inference.stdout")
_CONFIGS: Final = ("*.toml", "config/*.toml", "configs/*.toml", "control/*.toml")
_FINISH_REASONS: Final[Mapping[str, str]] = {"stop": "stop", "tool_calls": "stop", "length": "length"}


@dataclass(slots=True)
class _Run:
    """State of an import while the files of a run are read."""

    target: ImportTarget
    engine: str = _SAMPLER
    in_flight: Spans = field(default_factory=Spans)
    trained: set[int] = field(default_factory=set[int])
    """Hashes of the traces that were trained on."""
    samples: int = 0


def _recognize(source: ImportSource) -> bool:
    return _metrics(source.path) is not None or any(source.path.glob("rollouts/step_*/train"))


def _metrics(folder: Path) -> ImportSource | None:
    """Return the metrics of a run folder; None if it has none of prime-rl."""
    source = open_source(folder / _METRICS) if (folder / _METRICS).is_file() else None
    return source if source is not None and recognize_steps(_TABLE, source) else None


def _read(source: ImportSource, target: ImportTarget, progress: Progress) -> None:
    """Add everything that the folder records. Raises ImportFileError if it has neither steps nor episodes."""
    folder, run = source.path, _Run(target)
    settings, log = _settings(folder), next((folder / name for name in _LOGS if (folder / name).is_file()), None)
    if log is not None and not VLLM_LOG.recognize(open_source(log)):
        log = None
    target.knows_samplers = target.knows_samplers or log is not None or (folder / "rollouts").is_dir()
    if metrics := _metrics(folder):
        fill(read_steps(metrics, _TABLE, target, progress, settings), target)
    for role in (_TRAINER, _SAMPLER):
        target.add_worker(role, role, gpu_count=target.options.gpus_of(role) or gpus_of(settings, _TABLE, role))
    target.add_config(**stated_settings(settings, _TABLE))
    _read_inference(run, log, progress)
    _read_rollouts(run, folder / "rollouts", progress)
    if metrics is None and not run.samples:
        raise ImportFileError.of(
            folder,
            found="no metrics.jsonl with the times of steps, and no episode under rollouts/",
            expected="the output folder of a prime-rl run with its file monitor on",
            next_step="Pass the folder that holds metrics.jsonl (monitors.file is on by default).",
        )
    _say(run)


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


def _read_inference(run: _Run, log: Path | None, progress: Progress) -> None:
    if log is None:
        run.target.note(
            "No inference.log found, so engine step times are unknown. Pass it with --engine-log.",
            unless="engine_steps",
        )
        return
    VLLM_LOG.read(open_source(log), run.target, progress)
    if len(run.target.engines) == 1:
        (run.engine,) = run.target.engines
    else:
        run.target.note("No file states which engine answered a model call, so there are no results by engine.")


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
                    file.tally.bad_lines += 1
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
            end_ns, *(epoch_ns(_inside(trace, "timing", part).get("end")) or 0 for part in ("scoring", "finalize"))
        )
        delivery = {"sample_id": str(name), "worker_id": _TRAINER, "queued_ns": queued_ns, "reward": _reward(trace)}
        if is_trained:
            times = run.target.steps.get(step)
            taken_ns, version = (times.generated_ns, times.version) if times else (queued_ns, step - 1)
            if any(queued_ns < again_ns <= taken_ns for again_ns in run.target.restarts):
                run.target.add("deliveries", {**delivery, "outcome": "abandoned", "taken_ns": queued_ns})
                continue
            # The orchestrator packs a batch before its step begins, but on another clock.
            facts = {"queued_ns": min(queued_ns, taken_ns), "reward": delivery["reward"]}
            run.target.add_trained(str(name), _TRAINER, step, version, taken_ns, **facts)
        elif is_over:
            run.target.add("deliveries", {**delivery, "outcome": _why_not(episode), "taken_ns": queued_ns})


def _add_calls(run: _Run, trace: Mapping[str, Any], name: str, group: object, policy: Mapping[str, Any]) -> int | None:
    """Add a trace's model calls as segments and return the end of the last; None if the trace has no calls."""
    last_ns: int | None = None
    segment = 0
    for call in _objects(trace.get("calls")):
        span = _inside(call, "time")
        start_ns, end_ns = epoch_ns(span.get("start")), epoch_ns(span.get("end"))
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
    runs = version_runs([(start, output_tokens)])
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


def _say(run: _Run) -> None:
    target = run.target
    target.say_origins(Certainty.RECORDED, "samples", "deliveries")
    if run.samples:
        target.note("prime-rl does not record unfinished episodes, so work lost in flight is missing.")
    else:
        target.note("No episodes under rollouts/, so sample lengths and staleness are unknown.")


PRIME_RL: Final = Importer("prime-rl", "prime-rl output folder", _recognize, _read)
