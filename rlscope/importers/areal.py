"""AReaL's trajectory dumps (`rollout/VERSION/TASK.jsonl`) and session traces (`sessions-rRANK.jsonl`), joined by task.

The dumps have lengths and versions but no times; the sessions have times but no lengths.
`areal/infra/workflow_executor.py` and `areal/utils/perf_tracer.py` write them.
"""

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import accumulate, chain
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

from rlscope.errors import ImportFileError
from rlscope.importers.importer import Importer, ImportSource, Progress
from rlscope.importers.lines import records_of
from rlscope.importers.quantities import epoch_ns, number
from rlscope.importers.rows import items, mapping
from rlscope.importers.spans import Spans
from rlscope.importers.target import ImportTarget, version_runs
from rlscope.trace.imported import Certainty

_SESSIONS: Final = "sessions-r*.jsonl"
_SESSION_KEYS: Final = ('"session_id"', '"submit_ts"')
_LOOKED_AT: Final = 5
"""Depth of the search for files, in folder levels below the given one."""
_OUTCOMES: Final[Mapping[str, str]] = {
    "accepted": "trained",
    "rejected": "filtered",
    "dropped": "dropped_stale",
    "failed": "abandoned",
}
_SAMPLER, _TRAINER = "rollout", "trainer"


class _Dumped(NamedTuple):
    """A trajectory in the dumps."""

    prompt_tokens: int
    output_tokens: int
    versions: tuple[tuple[int, int], ...]
    """Pairs of version and token count, in order."""
    is_exact: bool
    """Whether the version of every token is known; if not, only the oldest version is."""
    reward: float | None


@dataclass(slots=True)
class _Run:
    """State of an import while its files are read."""

    target: ImportTarget
    dumped: dict[int, list[_Dumped]] = field(default_factory=dict[int, list[_Dumped]])
    """Trajectories by task, in the order of the task's samples."""
    in_flight: Spans = field(default_factory=Spans)
    seen: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    """Finish time and newest version of each sample."""
    taken: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    """Deliveries of trained samples. Their version is known only after all files are read."""
    sessions: int = 0
    samples: int = 0


def _recognize(source: ImportSource) -> bool:
    if source.path.is_dir():
        return any(True for _ in chain(_below(source.path, _SESSIONS), _dumps(source.path)))
    return any(all(key in line for key in _SESSION_KEYS) for line in source.text.splitlines())


def _below(folder: Path, pattern: str) -> Iterator[Path]:
    for depth in range(_LOOKED_AT):
        yield from sorted(folder.glob("*/" * depth + pattern))


def _dumps(folder: Path) -> Iterator[Path]:
    for version in _below(folder, "rollout/[0-9]*"):
        if version.is_dir() and version.name.isdecimal():
            yield from sorted(version.glob("*.jsonl"))


def _read(source: ImportSource, target: ImportTarget, progress: Progress) -> None:
    """Add the sessions, with lengths and versions of dumped tasks. Raises ImportFileError if there are no sessions."""
    run = _Run(target)
    for path in _dumps(source.path):
        _read_dump(run, path, progress)
    for path in _below(source.path, _SESSIONS) if source.path.is_dir() else (source.path,):
        seen = set[str]()
        for file, record in records_of(path, target, progress):
            if _add_session(run, record):
                _refuse_second_start(path, seen, str(record["session_id"]))
            else:
                file.tally.bad_lines += 1
    if not run.sessions:
        raise ImportFileError.of(
            source.path,
            found="trajectory dumps without a session trace" if run.dumped else "no session trace",
            expected="sessions-r*.jsonl files, which have the trajectories' times",
            next_step="Set perf_tracer.session_tracer.enabled=true in AReaL's config.",
        )
    target.add_worker(_SAMPLER, "sampler", gpu_count=target.options.gpus_of("sampler"))
    run.in_flight.write(_SAMPLER, target)
    _deliver(run)
    _say(run)


def _refuse_second_start(path: Path, seen: set[str], session: str) -> None:
    """Raise ImportFileError if ids are counted anew: the tasks of two starts cannot be told apart in the dumps."""
    if session in seen:
        raise ImportFileError.of(
            path,
            found=f"a second session {session}, as of a run that was started again and counts its tasks anew",
            expected="the sessions of one start",
            next_step="Copy the lines of each start, and the dumps of its time, into a folder of its own.",
        )
    seen.add(session)


def _read_dump(run: _Run, path: Path, progress: Progress) -> None:
    for file, record in records_of(path, run.target, progress):
        task, dumped = record.get("task_id"), _dumped(record)
        if isinstance(task, int) and dumped is not None:
            run.dumped.setdefault(task, []).append(dumped)
        else:
            file.tally.bad_lines += 1


def _dumped(record: Mapping[str, Any]) -> _Dumped | None:
    total, prompt, reward = record.get("seqlen"), record.get("prompt_len"), record.get("reward")
    if not isinstance(total, int) or not isinstance(prompt, int) or total < prompt:
        return None
    output = total - prompt
    head, tail = record.get("head_version"), record.get("tail_version")
    runs = _runs(record.get("version_rle"), output)
    is_exact = bool(runs)
    if not runs and isinstance(head, int) and isinstance(tail, int) and head >= 0 and output:
        # Without a range per version, only the version of the oldest token is certain.
        runs, is_exact = ((head, output),), head == tail
    return _Dumped(prompt, output, runs, is_exact, number(reward))


def _runs(listed: object, output_tokens: int) -> tuple[tuple[int, int], ...]:
    """Return the versions of all output tokens; empty if the list is incomplete. Prompt tokens have version -1."""
    pairs = [pair for pair in map(items, items(listed)) if [type(part) for part in pair] == [int, int]]
    sampled = tuple((version, tokens) for version, tokens in cast("list[list[int]]", pairs) if version >= 0)
    return sampled if sum(tokens for _, tokens in sampled) == output_tokens else ()


def _add_session(run: _Run, record: Mapping[str, Any]) -> bool:
    """Add a session; return False if it has no task or no times."""
    task, session = record.get("task_id"), record.get("session_id")
    submitted_ns = epoch_ns(record.get("submit_ts"))
    if not isinstance(task, int) or session is None or submitted_ns is None:
        return False
    run.sessions += 1
    spans = _spans(record)
    for span in spans:
        run.in_flight.add(*span)
    run.target.extend_worker(_SAMPLER, submitted_ns, max([submitted_ns, *(end for _, end in spans)]))
    dumps = run.dumped.get(task)
    if spans and dumps:
        name = f"{task}-{session}"
        # AReaL dumps a task's samples in the order in which it opened their sessions.
        _add_sample(run, name, str(task), dumps.pop(0), submitted_ns, spans)
        outcome, taken_ns = _OUTCOMES.get(str(record.get("status"))), epoch_ns(record.get("finalized_ts"))
        if outcome is not None and taken_ns is not None:
            row = {"sample_id": name, "worker_id": _TRAINER, "queued_ns": min(spans[-1][1], taken_ns)}
            run.taken.append(row | {"outcome": outcome, "taken_ns": taken_ns})
    return True


def _add_sample(
    run: _Run, name: str, group: str, dumped: _Dumped, submitted_ns: int, spans: list[tuple[int, int]]
) -> None:
    started_ns, finished_ns = spans[0][0], spans[-1][1]
    run.samples += 1
    if dumped.versions:
        run.seen.append((finished_ns, max(version for version, _ in dumped.versions)))
    run.target.add(
        "samples",
        {
            "sample_id": name,
            "segment": 0,
            "group_id": group,
            "worker_id": _SAMPLER,
            "submitted_ns": submitted_ns,
            "started_ns": started_ns,
            "finished_ns": finished_ns,
            "prompt_tokens": dumped.prompt_tokens,
            "output_tokens": dumped.output_tokens,
            "versions": version_runs(dumped.versions),
            "version_source": "segment" if dumped.is_exact else "admission",
            # Between two calls of the engine, a session waits for its tools or its environment.
            "env_wait_ns": max(0, finished_ns - started_ns - sum(end - start for start, end in spans)),
        },
    )


def _spans(record: Mapping[str, Any]) -> list[tuple[int, int]]:
    """Return the times in which a session generated, in order."""
    spans: list[tuple[int, int]] = []
    for times in map(mapping, items(mapping(record.get("phases")).get("generate"))):
        start_ns, end_ns = epoch_ns(times.get("start_ts")), epoch_ns(times.get("end_ts"))
        if start_ns is not None and end_ns is not None and end_ns >= start_ns:
            spans.append((start_ns, end_ns))
    return sorted(spans)


def _deliver(run: _Run) -> None:
    """Add the deliveries. The trainer's version is at least the newest version of any sample that finished before."""
    run.seen.sort()
    times = [time for time, _ in run.seen]
    newest = [*accumulate((version for _, version in run.seen), max, initial=0)]
    for row in run.taken:
        if row["outcome"] == "trained":
            version = newest[bisect_right(times, row["taken_ns"])]
            row |= {"step": version, "consumer_version": version}
        run.target.add("deliveries", row)
    if run.taken:
        run.target.add_worker(_TRAINER, "trainer", gpu_count=run.target.options.gpus_of("trainer") or 0)
        taken_ns = [row["taken_ns"] for row in run.taken]
        run.target.extend_worker(_TRAINER, min(taken_ns), max(taken_ns))


def _say(run: _Run) -> None:
    target = run.target
    target.say_origins(Certainty.RECORDED, "samples")
    rule = "the trainer's version is the newest version of any sample finished by then"
    target.say_origins(Certainty.INFERRED, "deliveries", rule=rule)
    if run.samples < run.sessions:
        target.note(
            f"{run.sessions - run.samples:,} of {run.sessions:,} sessions have no dumped trajectory, so lengths and"
            " versions are missing. Set rollout.dump_to_file=true in AReaL's config."
        )
    target.note("AReaL's session traces do not record the trainer. Pass the trainer's log or .wandb file with --with.")


AREAL_SESSIONS: Final = Importer("areal", "AReaL dumps and session traces", _recognize, _read)
