"""Telemetry of miles' dashboard (`--use-miles-dashboard`): phases, engines, and the turns of every sample.

Streams are JSON lines with times since the epoch, in `STREAM.jsonl` or `STREAM/YYYYMMDD_HH.jsonl`; see
`miles/dashboard/store.py`. Lengths come from `dashboard_columns/` beside it, because the dumps themselves are pickles,
which are never read.
"""

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, groupby, pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeGuard, cast

import pyarrow as pa
import pyarrow.parquet as pq

from rlscope.errors import ImportFileError
from rlscope.frameworks import framework
from rlscope.frameworks.table import PhaseKind
from rlscope.importers.importer import Importer, ImportSource, Progress
from rlscope.importers.layout import longest_pause_ns
from rlscope.importers.lines import LONGEST_RECORD_BYTES, LogFile, records_of, safe_worker_id
from rlscope.importers.quantities import (
    LATEST_S,
    MOST,
    MOST_GPUS,
    MOST_STEPS,
    columns_of,
    epoch_ns,
    factors_in,
    number,
    to_ns,
)
from rlscope.importers.rows import items, mapping, parsed_json
from rlscope.importers.spans import Spans
from rlscope.importers.target import ImportTarget, version_runs
from rlscope.trace.imported import Certainty

_META: Final = "meta.json"
_COLUMNS: Final = ("sample_index", "response_length", "total_length", "loss_mask")
_MEGABYTE: Final = 1 << 20
_RUNNING, _QUEUED, _TOKENS, _PROMPTS = (
    "sglang_num_running_reqs",
    "sglang_num_queue_reqs",
    "sglang_generation_tokens_total",
    "sglang_prompt_tokens_total",
)
_SERIES: Final = frozenset({_RUNNING, _QUEUED, _TOKENS, _PROMPTS})
_LONGEST_SAMPLE_NS: Final = 60 * 10**9
"""Maximum gap between two readings of one span. After a longer gap, the engine was unavailable in between."""
_CONSOLE: Final = framework("slime").console
"""The timers and results of miles are those of slime."""
_RESULTS: Final = factors_in(chain(*_CONSOLE.columns.values()))


class _Lengths(NamedTuple):
    """Token counts of one sample, from the columns."""

    step: int
    prompt_tokens: int
    turns: tuple[int, ...]
    """Tokens that the policy sampled, by turn."""


@dataclass(slots=True)
class _Reading:
    """The last values of an engine's series, and the scrape that they come from."""

    time_ns: int
    values: defaultdict[str, float] = field(default_factory=lambda: defaultdict[str, float](float))


class _Start(NamedTuple):
    """A start of the run, which goes on from a checkpoint and counts the versions of the weights anew."""

    begin_ns: int
    first_step: int
    versions: int
    """Versions that were published before it."""


@dataclass(slots=True)
class _Run:
    """State of an import while the streams are read."""

    target: ImportTarget
    folder: Path
    progress: Progress
    is_colocated: bool = False
    numbers: dict[int, dict[str, float]] = field(default_factory=dict[int, dict[str, float]])
    """Metrics by step and name."""
    starts: list[_Start] = field(default_factory=lambda: [_Start(0, 0, 0)])
    ranks: dict[int, int] = field(default_factory=dict[int, int])
    """Number of GPUs of each trainer rank."""
    steps: Counter[tuple[int, _Start]] = field(default_factory=Counter[tuple[int, _Start]])
    updates: Counter[int] = field(default_factory=Counter[int])
    rollouts: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    published: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    engines: dict[str, str] = field(default_factory=dict[str, str])
    """Worker by engine address."""
    taken: dict[int, tuple[int, int]] = field(default_factory=dict[int, tuple[int, int]])
    """By step: when rank 0 began to train it, and the last version before that."""
    lengths: dict[int, _Lengths] = field(default_factory=dict[int, _Lengths])
    in_flight: Spans = field(default_factory=Spans)
    samples: int = 0
    unmatched: int = 0

    def start_at(self, time_ns: int) -> _Start:
        """Return the start of the run that a time is of."""
        return self.starts[max(0, bisect_right(self.starts, time_ns, key=lambda each: each.begin_ns) - 1)]


def _recognize(source: ImportSource) -> bool:
    folder = _dashboard(source.path)
    return folder is not None and any(_files(folder, name) for name in ("phases", "engine_series", "trajectories"))


def _dashboard(path: Path) -> Path | None:
    """Return the telemetry folder: the given one, or `dashboard` inside it."""
    folders = (path, path / "dashboard") if path.is_dir() else ()
    return next((folder for folder in folders if {"schema_version", "start_ts"} <= _meta(folder).keys()), None)


def _meta(folder: Path) -> dict[str, Any]:
    """Return what the telemetry says of its run; empty if it is none."""
    path = folder / _META
    return mapping(parsed_json(path.read_bytes())) if path.is_file() and path.stat().st_size < _MEGABYTE else {}


def _files(folder: Path, stream: str) -> list[Path]:
    flat = folder / f"{stream}.jsonl"
    return [*([flat] if flat.is_file() else []), *sorted((folder / stream).glob("*.jsonl"))]


def _read(source: ImportSource, target: ImportTarget, progress: Progress) -> None:
    """Add trainer ranks, engines, GPUs and samples. Raises ImportFileError if no stream has any records."""
    folder = _dashboard(source.path) or source.path
    run = _Run(target, folder, progress)
    target.sampler_gpus = target.options.gpus_of("sampler")
    run.is_colocated = bool(mapping(_meta(folder).get("args")).get("colocate"))
    _find_starts(run, sorted(_read_metrics(run)))
    _read_topology(run)
    _read_phases(run)
    _add_ranks(run)
    _read_engine_series(run)
    _read_queue(run)
    _read_columns(run, folder.parent / "dashboard_columns")
    _read_trajectories(run)
    _say(run)


def _records(run: _Run, stream: str) -> Iterator[tuple[LogFile, dict[str, Any]]]:
    """Yield the records of a stream with their file. If the run is still writing, the last line may be incomplete."""
    for path in _files(run.folder, stream):
        yield from records_of(path, run.target, run.progress)


def _is_rank(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and 0 <= value <= MOST_GPUS


# The trainer


def _read_metrics(run: _Run) -> Iterator[tuple[int, int]]:
    """Read the metrics of each step. Yield the time of each row, and its step."""
    for file, record in _records(run, "metrics"):
        step = record.get("step")
        if isinstance(step, int):
            held = mapping(record.get("metrics"))
            names = _RESULTS & held.keys()
            facts = {name: value for name in names if (value := number(held[name], MOST)) is not None}
            file.tally.bad_lines += len(facts) < len(names)
            run.numbers.setdefault(step, {}).update(facts)
            if (time_ns := epoch_ns(record.get("ts"))) is not None:
                yield time_ns, step


def _find_starts(run: _Run, logged: Sequence[tuple[int, int]]) -> None:
    """Find the starts of the run between the phases of rank 0, and leave out the time and the steps lost between them.

    The first step of a start is that of its first metrics. logged: times of metrics, in order, and their steps.
    """
    phases, trained_ns, updated_ns = Spans(), list[int](), list[int]()
    for path in _files(run.folder, "phases"):
        for record in LogFile(path, longest_bytes=LONGEST_RECORD_BYTES).records():
            span = _span(record)
            if span is not None and record.get("role") == "train" and record.get("rank") == 0:
                kind = _CONSOLE.timers.get(str(record.get("name")))
                phases.add(*span)
                trained_ns += [span[1]] if kind is PhaseKind.TRAIN else []
                updated_ns += [span[1]] if kind is PhaseKind.UPDATE else []
    trained_ns.sort()
    longest_ns, starts, pauses = longest_pause_ns(trained_ns), list[_Start](), list[tuple[int, int]]()
    spans = phases.spans()
    ups = [(a[1], b[0]) for a, b in pairwise(spans) if b[0] - a[1] > longest_ns]
    for down_ns, up_ns in [*(2 * (start_ns,) for start_ns, _ in spans[:1]), *ups]:
        own_ns = [end_ns for end_ns in trained_ns if starts and starts[-1].begin_ns < end_ns <= down_ns]
        after = starts[-1].first_step + len(own_ns) if starts else 0
        first = next((step for time_ns, step in logged if time_ns > up_ns), after)
        if first < after:
            kept = len(own_ns) - (after - first)
            down_ns = own_ns[kept - 1] if kept > 0 else starts[-1].begin_ns
            run.target.restarts.append(up_ns)
        pauses += [(down_ns, up_ns)] if starts else []
        starts.append(_Start(up_ns, first, sum(end_ns < up_ns for end_ns in updated_ns)))
    run.starts = starts or run.starts
    run.target.leave_out_pauses(pauses)


def _span(record: Mapping[str, Any]) -> tuple[int, int] | None:
    """Return start and end of a phase; None if it was still running when it was written."""
    start_ns, end = epoch_ns(record.get("t0")), number(record.get("t1"), LATEST_S)
    return None if start_ns is None or end is None else (start_ns, to_ns(end))


def _read_phases(run: _Run) -> None:
    """Add each phase of each rank. A phase that was still running when it was written has no end."""
    for file, record in _records(run, "phases"):
        span, rank = _span(record), record.get("rank")
        if span is None or not isinstance(rank, int):
            file.tally.bad_lines += 1
        elif span[1] >= span[0]:
            name = str(record.get("name"))
            if record.get("role") == "train" and _is_rank(rank):
                run.ranks.setdefault(rank, len(items(record.get("gpus"))) or 1)
                _add_phase(run, rank, name, span)
            elif name == "rollout":
                run.rollouts.append(span)


def _rank(rank: int) -> str:
    return f"trainer-{rank}"


def _add_phase(run: _Run, rank: int, name: str, span: tuple[int, int]) -> None:
    worker, kind = _rank(rank), _CONSOLE.timers.get(name)
    run.target.extend_worker(worker, *span)
    if kind is PhaseKind.TRAIN:
        _add_step(run, rank, span)
    elif kind is PhaseKind.UPDATE:
        run.updates[rank] += 1
        if rank == 0:
            run.published.append(span)
        run.target.add_update(worker, "apply" if run.is_colocated else "publish", run.updates[rank], *span)
    elif kind is PhaseKind.TAKE:
        if not run.is_colocated:
            run.target.add_phase(worker, PhaseKind.WAIT_SAMPLES, *span)
    elif kind is not None:
        run.target.add_phase(worker, kind, *span)


def _add_step(run: _Run, rank: int, span: tuple[int, int]) -> None:
    start, version = run.start_at(span[0]), run.updates[rank]
    step = start.first_step + run.steps[rank, start]
    run.steps[rank, start] += 1
    numbers = run.numbers.get(step, {}) if rank == 0 else {}
    if rank == 0:
        run.taken[step] = (span[0], version)
    columns = columns_of(numbers, _CONSOLE.columns)
    run.target.add_training(_rank(rank), step, (version, version + 1), span, columns)


def _add_ranks(run: _Run) -> None:
    role = "colocated" if run.is_colocated else "trainer"
    stated = run.target.options.gpus_of(role) or 0
    for rank, gpus in run.ranks.items():
        run.target.add_worker(_rank(rank), role, gpu_count=stated // len(run.ranks) or gpus)
        if run.is_colocated:
            for span in run.rollouts:
                run.target.add_phase(_rank(rank), PhaseKind.GENERATE, *span)
    if run.is_colocated:
        return
    for engine in run.engines.values():
        for version, span in enumerate(run.published, start=1):
            run.target.add_update(engine, "apply", version, *span)
            run.target.extend_worker(engine, *span)


# Engines


def _read_topology(run: _Run) -> None:
    """Add each engine with its GPUs. An engine that was restarted elsewhere keeps its rank."""
    for _file, record in _records(run, "topology"):
        for facts in map(mapping, items(record.get("engines"))):
            address, rank, gpus = facts.get("addr"), facts.get("engine_rank"), facts.get("gpus")
            if not isinstance(address, str) or not isinstance(gpus, list):
                continue
            worker = f"engine-{rank}" if _is_rank(rank) else safe_worker_id(address)
            if address not in run.engines:
                run.engines[address] = worker
                run.target.add_engine(worker, gpu_count=len(items(gpus)))


def _read_engine_series(run: _Run) -> None:
    """Add a row for each pair of consecutive scrapes of an engine."""
    before: dict[str, _Reading] = {}
    idle: defaultdict[str, Spans] = defaultdict(Spans)
    for address, reading in _readings(run):
        _add_row(run, address, before.get(address), reading, idle)
        before[address] = reading
    for worker, spans in idle.items():
        spans.write_idle(worker, run.target)


def _readings(run: _Run) -> Iterator[tuple[str, _Reading]]:
    """Yield each scrape of an engine with its address. Series that are split by labels are summed."""
    current: dict[str, _Reading] = {}
    for file, record in _records(run, "engine_series"):
        time_ns, address, metric = epoch_ns(record.get("ts")), record.get("addr"), record.get("metric")
        value = number(record.get("value"), MOST)
        if time_ns is None or not isinstance(address, str) or value is None:
            file.tally.bad_lines += 1
        elif metric in _SERIES:
            reading = current.get(address)
            if reading is None or time_ns > reading.time_ns:
                if reading is not None:
                    yield address, reading
                reading = current[address] = _Reading(time_ns)
            reading.values[metric] += value
    yield from current.items()


def _add_row(run: _Run, address: str, before: _Reading | None, after: _Reading, idle: defaultdict[str, Spans]) -> None:
    worker = run.engines.get(address)
    if worker is None:
        worker = run.engines[address] = safe_worker_id(address)
        run.target.add_engine(worker)
    if before is None or not 0 < after.time_ns - before.time_ns <= _LONGEST_SAMPLE_NS:
        return
    start_ns, end_ns = before.time_ns, after.time_ns
    running = (before.values[_RUNNING] + after.values[_RUNNING]) / 2
    decoded, prefilled = (max(0, round(after.values[name] - before.values[name])) for name in (_TOKENS, _PROMPTS))
    run.target.extend_worker(worker, start_ns, end_ns)
    if not (running or decoded or prefilled):
        # One idle span however often it was scraped. A weight update within it is a later, inner span.
        idle[worker].add(start_ns, end_ns)
        return
    row = {"worker_id": worker, "start_ns": start_ns, "end_ns": end_ns, "source": "sampled"}
    row |= {"running": round(running), "waiting": round(after.values[_QUEUED])}
    run.target.add("engine_steps", {**row, "decode_tokens": decoded, "prefill_tokens": prefilled})


def _read_queue(run: _Run) -> None:
    for file, record in _records(run, "data_buffer"):
        time_ns, length = epoch_ns(record.get("ts")), record.get("length")
        if time_ns is None or not isinstance(length, int):
            file.tally.bad_lines += 1
        else:
            row = {"worker_id": _rank(0), "queue": "data_buffer", "time_ns": time_ns, "depth": length}
            run.target.add("queue_depths", row)


# Samples


def _read_columns(run: _Run, folder: Path) -> None:
    """Read the sample lengths of each rollout; add a note on files that miles did not write."""
    for path in sorted(folder.glob("rollout_[0-9]*.parquet")):
        number = path.stem.removeprefix("rollout_")
        if not number.isdecimal():
            continue
        try:
            for batch in pq.ParquetFile(path).iter_batches(columns=list(_COLUMNS)):
                for row in batch.to_pylist():
                    response = row["response_length"]
                    mask = row["loss_mask"] or [1] * response
                    turns = tuple(sum(1 for _ in tokens) for is_sampled, tokens in groupby(mask) if is_sampled)
                    run.lengths[row["sample_index"]] = _Lengths(int(number), row["total_length"] - response, turns)
        except (OSError, ValueError, KeyError, TypeError, pa.ArrowException) as error:
            run.target.note(f"{path.name} cannot be read: {error}")


def _read_trajectories(run: _Run) -> None:
    """Add each turn as a segment, with its tokens if the columns have them, else with its duration only."""
    started: dict[tuple[int, int], int] = {}
    segments: Counter[int] = Counter()
    only = next(iter(run.engines.values())) if len(set(run.engines.values())) == 1 else "engines"
    for file, record in _records(run, "trajectories"):
        time_ns, index, turn = epoch_ns(record.get("ts")), record.get("sample_index"), record.get("turn")
        if time_ns is None or not isinstance(index, int) or not isinstance(turn, int):
            file.tally.bad_lines += 1
        elif not run.target.is_up(time_ns, time_ns):
            continue
        elif record.get("kind") == "gen_start":
            started[index, turn] = time_ns
        elif record.get("kind") == "gen_end":
            start_ns = started.pop((index, turn), None)
            run.in_flight.add(start_ns, time_ns)
            _add_turn(run, only, record, segments[index], start_ns, time_ns)
            segments[index] += 1
    _deliver(run, segments)
    if not run.engines or not (run.target.rows_of("engine_steps") or run.is_colocated):
        run.target.add_worker(only, "sampler", gpu_count=run.target.sampler_gpus)
        run.in_flight.write(only, run.target)
    elif only == "engines" and run.samples:
        run.target.add_worker(only, "sampler", gpu_count=0)
        for start_ns, end_ns in run.in_flight.spans():
            run.target.extend_worker(only, start_ns, end_ns)


def _add_turn(
    run: _Run, worker: str, record: Mapping[str, Any], segment: int, start_ns: int | None, end_ns: int
) -> None:
    index = cast("int", record["sample_index"])
    lengths = run.lengths.get(index)
    if lengths is None or segment >= len(lengths.turns):
        run.unmatched += 1
        return
    output = lengths.turns[segment]
    group, version = record.get("group_index"), number(record.get("weight_version"), MOST_STEPS)
    before = run.start_at(end_ns).versions
    run.samples += 1
    run.target.add(
        "samples",
        {
            "sample_id": str(index),
            "segment": segment,
            "group_id": str(group) if isinstance(group, int) and group >= 0 else None,
            "worker_id": worker,
            "submitted_ns": start_ns,
            "finished_ns": end_ns,
            "prompt_tokens": lengths.prompt_tokens + sum(lengths.turns[:segment]),
            "output_tokens": output,
            "versions": version_runs([] if version is None else [(before + int(version), output)]),
            "version_source": "segment",
        },
    )


def _deliver(run: _Run, segments: Mapping[int, int]) -> None:
    """Add the deliveries: a sample in a rollout's columns was trained in the step of the same number."""
    for index, lengths in run.lengths.items():
        taken = run.taken.get(lengths.step)
        if taken is None or not segments.get(index):
            continue
        taken_ns, version = taken
        run.target.add_trained(str(index), _rank(0), lengths.step, version, taken_ns)


def _say(run: _Run) -> None:
    target = run.target
    if not any(target.rows_of(table) for table in ("train_steps", "activities", "engine_steps", "samples")):
        raise ImportFileError.of(
            run.folder,
            found="streams with no phase, engine or sample",
            expected="the telemetry of a miles run",
            next_step="Pass the --dump-details folder of a run that reached its first rollout.",
        )
    recorded = "train_steps", "activities", "weight_updates", "engine_steps", "queue_depths", "samples"
    target.say_origins(Certainty.RECORDED, *recorded)
    rule = "each rollout is trained in the step with the same number"
    target.say_origins(Certainty.INFERRED, "deliveries", rule=rule)
    if run.unmatched:
        target.note(
            f"{run.unmatched:,} turns have no lengths in dashboard_columns/, so their tokens' staleness is unknown."
        )


MILES_DASHBOARD: Final = Importer("miles", "miles dashboard folder", _recognize, _read)
