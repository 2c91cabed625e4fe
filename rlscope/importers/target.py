"""The run folder that an import fills: rows of the trace format, workers, and run.json with the origin of each table.

Rows are written in batches as they arrive, so that importing a log of gigabytes takes constant memory.
"""

import json
import os
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple, get_args

import pyarrow as pa
import pyarrow.parquet as pq
from rlscope_otel.schema import FORMAT_NAME, FORMAT_VERSION, TABLES, arrow_schema
from rlscope_otel.schema import TIMES as STORED_TIMES

from rlscope.errors import OutputError
from rlscope.format import counted, duration, finite
from rlscope.frameworks.table import ACTIVITIES, Framework, PhaseKind
from rlscope.trace.footers import LATEST_NS
from rlscope.trace.imported import Certainty, Clock, Imported, ReportedKind, SourceFile, TableOrigin, as_document
from rlscope.trace.ranges import joined

_BATCH_ROWS: Final = 20_000
_LONGEST_NAME: Final = 200
_LARGEST_VERSION: Final = 1 << 31
TIMES: Final = frozenset(
    ("start_ns", "end_ns", "time_ns", "submitted_ns", "started_ns", "finished_ns", "queued_ns", "taken_ns")
)
"""The columns with times, UTC epoch."""
_COLUMNS: Final = {table: {column.name for column in columns} for table, columns in TABLES.items()}
_WHOLES: Final = {
    table: tuple(
        (column.name, min(LATEST_NS, 1 << (column.type.bit_width - 1)))
        for column in columns
        if pa.types.is_integer(column.type)
    )
    for table, columns in TABLES.items()
}
"""The integer columns of each table, and the exclusive upper bound of their values."""
_BY_SAMPLE: Final = "samples", "deliveries"
_ALWAYS: Final = -LATEST_NS, LATEST_NS


@dataclass(frozen=True, slots=True)
class ImportOptions:
    """Facts from the user that the files do not state."""

    framework: str | None = None
    """`--as`: None detects the framework from the contents of the files."""
    own: Framework | None = None
    """`--framework` or `--phases`: the user's own table, which takes the place of rlscope's."""
    gpus: Mapping[str, int] = field(default_factory=dict[str, int])
    """`--gpus trainer=8,sampler=8`: GPUs by role."""
    gpus_per_engine: int | None = None
    utc_offset_s: int | None = None
    """Offset from UTC of timestamps without a zone; None if unknown."""
    with_files: tuple[Path, ...] = ()
    """`--with`: other files of the same run."""
    engine_logs: tuple[Path, ...] = ()
    """`--engine-log`: one log per engine, or run folders of engines."""

    def gpus_of(self, role: str) -> int | None:
        """Return the GPUs of a role that the user states; those of trainers may be shared with samplers."""
        return self.gpus.get(role) or (self.gpus.get("trainer") if role == "colocated" else None)


NO_OPTIONS: Final = ImportOptions()


class StepTimes(NamedTuple):
    """Times and version of a step, which its samples need."""

    generated_ns: int
    """End of generation, or of the wait for it."""
    trained_ns: int
    """Start of training."""
    version: int
    """The last version published before the step."""
    is_synchronous: bool
    """Whether this version generated the step's samples."""


@dataclass(slots=True, eq=False)
class ImportTarget:
    """Collects one run, which several importers may fill. Later facts never overwrite earlier ones.

    Times are nanoseconds since the UTC epoch. Times of a file without timestamps count from `relative_origin_ns`.
    """

    folder: Path
    run_id: str
    options: ImportOptions = NO_OPTIONS
    _: KW_ONLY
    relative_origin_ns: int
    given: Path = Path()
    """The imported file or folder; paths of its files are stored relative to it."""
    is_growing: bool = False
    """Whether the run goes on, so that no worker has an end."""

    # What importers tell each other.
    clock: Clock = "wall"
    knows_samplers: bool = False
    """Whether some file records the samplers' work, so that it need not be inferred."""
    config: dict[str, object] = field(default_factory=dict[str, object])
    """Settings added so far, by their names in run.json."""
    trainer_id: str | None = None
    samplers_id: str | None = None
    """The worker that stands for all samplers, if there is one."""
    sampler_gpus: int | None = None
    """GPUs of all samplers that the user or the config states, for a run whose engines have logs of their own."""
    engines: dict[str, None] = field(default_factory=dict[str, None])
    """Ids of the engines added so far."""
    steps: dict[int, StepTimes] = field(default_factory=dict[int, StepTimes])
    """Times by step, for files that record a step's samples without times."""
    restarts: list[int] = field(default_factory=list[int])
    """When the run was down before it repeated steps, ns: samples from before that are lost to later steps."""
    aligned_s: int | None = None
    """Seconds from the run to further files, if its steps have no times and such a file was put at its start."""
    _claimed: set[tuple[str, Path]] = field(default_factory=set[tuple[str, Path]])

    # What run.json says of the import.
    is_incomplete: bool = False
    thinned_evenly: list[str] = field(default_factory=list[str])
    _origins: dict[str, TableOrigin] = field(default_factory=dict[str, TableOrigin])
    _metrics: dict[ReportedKind, tuple[str, ...]] = field(default_factory=dict[ReportedKind, tuple[str, ...]])
    _coverage: dict[str, float] = field(default_factory=dict[str, float])
    _notes: dict[str, str | None] = field(default_factory=dict[str, str | None])
    _refusals: dict[str, None] = field(default_factory=dict[str, None])
    _files: list[tuple[str, SourceFile]] = field(default_factory=list[tuple[str, SourceFile]])
    """Kind of each file, and the file."""

    # Workers and rows.
    _workers: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    _extents: dict[str, tuple[int, int]] = field(default_factory=dict[str, tuple[int, int]])
    _cuts: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    _shared: list[tuple[str, dict[str, Any]]] = field(default_factory=list[tuple[str, dict[str, Any]]])
    """Rows of samplers that each engine has too."""
    _rows: dict[str, list[dict[str, Any]]] = field(default_factory=lambda: {table: [] for table in TABLES})
    _written: Counter[str] = field(default_factory=Counter[str])
    _refused: int = 0
    """Number of rows with a value that the format cannot hold."""

    def add(self, table: str, row: Mapping[str, object]) -> None:
        """Add a row; omitted columns, NaN and infinite values become NULL.

        Raises KeyError if the format has no such table or column, which is a bug in the importer.
        """
        held = {name: finite(value) if isinstance(value, float) else value for name, value in row.items()}
        if unknown := held.keys() - _COLUMNS[table]:
            raise KeyError(f"{table} has no {unknown}")
        if not _fits(table, held):
            self._refused += 1
            return
        if held.get("phase") == "apply" or held.get("reason") == "requests":
            self._shared.append((table, {**held}))
        if self._cuts and not self._shift(table, held):
            return
        rows = self._rows[table]
        rows.append(held)
        if len(rows) >= _BATCH_ROWS:
            self._flush(table)

    def add_phase(self, worker_id: str, kind: PhaseKind, start_ns: int, end_ns: int) -> None:
        """Add the activity of a worker during a phase, from its start to its end in ns; none if it took no time."""
        if end_ns > start_ns:
            activity, reason = ACTIVITIES[kind]
            row = {"worker_id": worker_id, "activity": activity, "reason": reason}
            self.add("activities", {**row, "start_ns": start_ns, "end_ns": end_ns})

    def add_update(self, worker_id: str, phase: str, version: int, start_ns: int, end_ns: int) -> None:
        """Add a publication of a version of the weights, its application or a part, from its start to its end in ns."""
        row = {"worker_id": worker_id, "phase": phase, "version": version}
        self.add("weight_updates", {**row, "start_ns": start_ns, "end_ns": end_ns})

    def add_training(
        self,
        worker_id: str,
        step: int,
        versions: tuple[int, int],
        span_ns: tuple[int, int],
        columns: Mapping[str, object],
    ) -> None:
        """Add a training step. versions: the one that it trains, and the one that it leaves. span_ns: start and end."""
        row = {"worker_id": worker_id, "step": step, "version_in": versions[0], "version_out": versions[1]}
        self.add("train_steps", {**row, "start_ns": span_ns[0], "end_ns": span_ns[1], **columns})

    def add_trained(
        self, sample_id: str, worker_id: str | None, step: int, version: int, taken_ns: int, **facts: object
    ) -> None:
        """Add the delivery of a sample that a step trained on. version: that of the weights before the step."""
        row = {"sample_id": sample_id, "worker_id": worker_id, "outcome": "trained", "step": step}
        self.add("deliveries", {**row, "consumer_version": version, "taken_ns": taken_ns, **facts})

    def add_worker(self, worker_id: str, role: str, **facts: object) -> None:
        """Add a worker, or facts that earlier files lacked: host, gpu_count, device_name, max_running, ..."""
        worker = self._workers.setdefault(worker_id, {"worker_id": worker_id, "role": role})
        for name, value in facts.items():
            if worker.get(name) is None:
                worker[name] = value

    def add_reported(
        self, framework: Framework, worker_id: str, step: int, time_ns: int, values: Mapping[str, float]
    ) -> None:
        """Add those of a step's metrics that the framework's table lists to be shown unchanged."""
        named = {kind: getattr(framework, kind) for kind in get_args(ReportedKind)}
        self._metrics = {kind: names for kind, names in named.items() if names}
        for name, value in values.items():
            if framework.reported and name.startswith(framework.reported) and len(name) <= _LONGEST_NAME:
                row = {"worker_id": worker_id, "time_ns": time_ns, "step": step, "name": name, "value": value}
                self.add("reported", row)

    def leave_out(self, stretches: Sequence[tuple[int, int]]) -> None:
        """Cut these time ranges (ns) out of the run: rows inside them are dropped, and later times move forward.

        For times in which the run was down, and for files that contain only some of the steps: shares of time then
        cover the other steps. A run that goes on keeps them, because a watch never goes back in time. Call this before
        adding the first row after a time range.
        """
        self._cuts = [] if self.is_growing else joined(sorted([*self._cuts, *stretches]))

    def _shift(self, table: str, row: dict[str, Any]) -> bool:
        """Move a row's times to account for the cuts; return False if nothing of the row is left.

        Of the samples that finished inside a cut, those from before a restart are not left.
        """
        first_ns, last_ns = (row[name] for name in STORED_TIMES[table])
        for start_ns, end_ns in self._cuts:
            # An instant on an edge is part of what is left.
            is_inside = start_ns <= first_ns < last_ns <= end_ns or start_ns < first_ns == last_ns < end_ns
            if is_inside and (table not in _BY_SAMPLE or any(last_ns < at_ns < end_ns for at_ns in self.restarts)):
                return False
        for name in TIMES & row.keys():
            if row[name] is not None:
                row[name] = self._moved(row[name])
        return True

    def _moved(self, time_ns: int) -> int:
        return time_ns - sum(min(end, time_ns) - start for start, end in self._cuts if start < time_ns)

    def leave_out_pauses(self, pauses: Sequence[tuple[int, int]]) -> None:
        """Leave out the time ranges (ns) in which the run was down or stood still, and say so."""
        if pauses:
            down_s = sum(end_ns - start_ns for start_ns, end_ns in pauses) / 1e9
            times = counted(len(pauses), "time", "times")
            self.note(
                f"The run was down or stood still {times}, for {duration(down_s)} in all; "
                "that time is left out for all workers"
            )
            self.leave_out(pauses)

    def is_up(self, start_ns: int, end_ns: int) -> bool:
        """Return whether some of a time range is not left out."""
        return self._moved(end_ns + 1) > self._moved(start_ns)

    def add_engine(self, worker_id: str, **facts: object) -> None:
        """Add a sampler engine from its own log.

        Step metrics have one worker for all samplers; if engines are added, they take over its GPUs.
        """
        self.add_worker(worker_id, "sampler", **facts)
        self.engines[worker_id] = None

    @property
    def gpus_per_engine(self) -> int | None:
        """GPUs of each engine that an option or the config states; None if neither does."""
        stated = self.config.get("gpus_per_engine")
        return stated if isinstance(stated, int) else None

    def extend_worker(self, worker_id: str, start_ns: int, end_ns: int) -> None:
        """Extend a worker's time range to include this one, unless the times are out of range."""
        if not -LATEST_NS < start_ns <= end_ns < LATEST_NS:
            return
        start, end = self._extents.get(worker_id, (start_ns, end_ns))
        self._extents[worker_id] = (min(start, start_ns), max(end, end_ns))

    def extent(self) -> tuple[int, int] | None:
        """Return the first start and the last end of all workers by the clock of the files; None without workers."""
        if not self._extents:
            return None
        return min(start for start, _ in self._extents.values()), max(end for _, end in self._extents.values())

    def add_config(self, **settings: object) -> None:
        """Add settings by their names in run.json; None is ignored, and so are settings added before."""
        for name, value in settings.items():
            if value is not None:
                self.config.setdefault(name, value)

    def say_origin(self, table: str, certainty: Certainty, rule: str | None = None) -> None:
        """Set the certainty of a table's rows; with several importers, the lowest certainty applies."""
        known = self._origins.get(table)
        order = list(Certainty)
        if known is None or order.index(certainty) > order.index(known.certainty):
            self._origins[table] = TableOrigin(certainty, rule)

    def say_origins(self, certainty: Certainty, *tables: str, rule: str | None = None) -> None:
        """Set the certainty of those tables that have rows."""
        for table in filter(self.rows_of, tables):
            self.say_origin(table, certainty, rule)

    def say_coverage(self, worker_id: str, ratio: float) -> None:
        """Set the share of a worker's time range that the files cover, 0 to 1; the lowest share applies."""
        self._coverage[worker_id] = min(ratio, self._coverage.get(worker_id, 1.0))

    def refuse_verdict(self, reason: str) -> None:
        """Add a reason why these files do not support a verdict."""
        self._refusals[reason] = None

    def note(self, sentence: str, *, unless: str | None = None) -> None:
        """Add a note on a gap in the data and on the file or flag that closes it; duplicates are dropped.

        unless: a table; the note is dropped if this file or a later one adds rows to it.
        """
        self._notes[sentence.removesuffix(".")] = unless

    def claim(self, path: Path, kind: str) -> bool:
        """Claim a file for a kind of reader; False if already claimed. Engine lines may be in the trainer's log."""
        claim = kind, path.resolve()
        is_new = claim not in self._claimed
        self._claimed.add(claim)
        return is_new

    def add_file(self, carrier: str, file: SourceFile) -> None:
        """Add a file that was read, and its kind."""
        path = Path(file.name)
        is_inside = path != self.given and path.is_relative_to(self.given)
        named = replace(file, name=str(path.relative_to(self.given)) if is_inside else path.name)
        self._files.append((carrier, named))

    def rows_of(self, table: str) -> int:
        """Return the number of rows added to a table so far."""
        return self._written[table] + len(self._rows[table])

    def finish(self, framework: str) -> Imported:
        """Write the remaining rows, the workers and run.json. Raises OutputError if a file cannot be written."""
        replaced = self._settle_engines()
        self._settle_gpus()
        if self._refused:
            self.note(f"{counted(self._refused, 'row', 'rows')} left out: a number or a time is out of range")
        imported = Imported(
            framework=framework,
            carriers=tuple(dict.fromkeys(carrier for carrier, _ in self._files)),
            files=tuple(file for _, file in self._files),
            clock=self.clock,
            tables=dict(self._origins),
            metrics=self._metrics,
            coverage=dict(self._coverage),
            is_incomplete=self.is_incomplete,
            thinned_evenly=tuple(self.thinned_evenly),
            notes=tuple(note for note, table in self._notes.items() if table is None or not self.rows_of(table)),
            no_verdict=tuple(self._refusals),
        )
        for table in TABLES:
            self._flush(table)
        for worker_id in self._workers:
            has_stopped = not self.is_growing or worker_id in replaced
            self._write_json(f"workers/{worker_id}.json", self._worker_document(worker_id, has_stopped=has_stopped))
        extent = self.extent()
        document = {
            "format": FORMAT_NAME,
            "version": FORMAT_VERSION,
            "run_id": self.run_id,
            "created_ns": self._moved(extent[0]) if extent else self.relative_origin_ns,
            "config": {"framework": framework, **self.config},
            "imported": as_document(imported),
        }
        # Written last: a folder without run.json is not a run, so an interrupted import leaves no partial run.
        self._write_json("run.json", document)
        return imported

    def _settle_engines(self) -> Collection[str]:
        """Divide the GPUs, weight updates and idle times of the worker for all samplers among the engines.

        Return the engines in whose place another one was started.
        """
        if not self.engines:
            return ()
        others = {name: worker for name, worker in self._workers.items() if name not in self.engines}
        wholes = {name: worker for name, worker in others.items() if worker["role"] == "sampler"}
        gpus = sum(worker.get("gpu_count") or 0 for worker in wholes.values())
        is_colocated = any(worker["role"] == "colocated" for worker in others.values())
        places = self._places()
        replaced = [engine for engines in places for engine in engines[:-1]]
        if replaced:
            logs = counted(len(replaced), "engine logs", "engines log")
            self.note(f"{logs} only after another has ended: taken for that one, started again on the same GPUs")
        for engine in self.engines:
            worker = self._workers[engine]
            if is_colocated:
                worker["gpu_count"] = 0
                self._coverage.pop(engine, None)
            elif gpus:
                worker["gpu_count"] = gpus // len(places)
            elif worker.get("gpu_count") is None:
                worker["gpu_count"] = self._gpus_of_an_engine(len(places))
        if is_colocated:
            self.note("The engines share the training GPUs, so engine rows are not added to the ledger.")
        for name, worker in wholes.items():
            worker["gpu_count"] = 0
            if name in self._extents:
                for engines in places:
                    self._cover(engines, *self._extents[name])
        for table, row in [each for each in self._shared if each[1]["worker_id"] in wholes]:
            for engine in self.engines:
                start_ns, end_ns = self._extents.get(engine, _ALWAYS)
                if start_ns < row["end_ns"] and row["start_ns"] < end_ns:
                    self.add(table, {**row, "worker_id": engine})
        if self.sampler_gpus and not gpus and not is_colocated:
            self._settle_other_samplers(self.sampler_gpus, [engines[0] for engines in places])
        return replaced

    def _cover(self, engines: Sequence[str], start_ns: int, end_ns: int) -> None:
        """Let the engines of a place cover a time range, each until the run was down before the next one started."""
        self.extend_worker(engines[0], start_ns, start_ns)
        self.extend_worker(engines[-1], end_ns, end_ns)
        for before, after in pairwise(engines):
            ended_ns, again_ns = self._extents[before][1], self._extents[after][0]
            down = ((start, end) for start, end in self._cuts if ended_ns <= end and start <= again_ns)
            down_ns, up_ns = next(down, (again_ns, again_ns))
            self.extend_worker(before, down_ns, down_ns)
            self.extend_worker(after, up_ns, up_ns)

    def _places(self) -> list[list[str]]:
        """Return the engines by place: one that logs only after another has ended was started again in its place."""
        moved_ns = {each: [*map(self._moved, self._extents.get(each, _ALWAYS))] for each in self.engines}
        places: list[list[str]] = []
        for engine in sorted(moved_ns, key=lambda each: moved_ns[each]):
            free = next((each for each in places if moved_ns[each[-1]][1] < moved_ns[engine][0]), None)
            if free is None:
                places.append([engine])
            else:
                free.append(engine)
        return places

    def _gpus_of_an_engine(self, places: int) -> int:
        """Return the GPUs of an engine whose log does not state them: by the config, else its share of all, else 1."""
        if gpus := self.gpus_per_engine or (self.sampler_gpus or 0) // places:
            return gpus
        self.note("The engine logs do not state GPUs per engine; 1 is assumed. Pass --gpus-per-engine.")
        return 1

    def _settle_other_samplers(self, gpus: int, engines: Sequence[str]) -> None:
        """Compare the engines with all samplers' GPUs, and add those of engines without a log as time of no state.

        engines: one for each place.
        """
        logged = sum(self._workers[each]["gpu_count"] for each in engines)
        if logged > gpus:
            self.note(f"The engine logs are of {logged} GPUs, not of the {gpus} sampler GPUs that are stated")
        extent, name = self.extent(), self.samplers_id or "sampler"
        if logged < gpus and extent is not None:
            self.add_worker(name, "sampler", gpu_count=gpus - logged)
            self.extend_worker(name, *extent)
            self.note(
                f"The engine logs are of {logged} of the {gpus} sampler GPUs. Pass the logs of all engines, or "
                "--gpus-per-engine if an engine has more"
            )

    def _settle_gpus(self) -> None:
        """Assume 1 GPU for each worker without a GPU count: shares of time are then right, but GPU-hours are not."""
        for worker in self._workers.values():
            if worker["role"] != "controller" and worker.get("gpu_count") is None:
                worker["gpu_count"] = 1
                side = "sampler" if worker["role"] == "sampler" else "trainer"
                self.note(
                    f"No file states the number of {side} GPUs; 1 is assumed, so shares of time are right but "
                    f"GPU-seconds are not. Pass --gpus {side}=N"
                )

    def _worker_document(self, worker_id: str, *, has_stopped: bool) -> dict[str, object]:
        extent = self._extents.get(worker_id, (self.relative_origin_ns, self.relative_origin_ns))
        start_ns, end_ns = map(self._moved, extent)
        defaults: dict[str, object] = {"host": "unknown", "gpu_count": 0}
        known = {name: value for name, value in self._workers[worker_id].items() if value is not None}
        stopped = {"stopped_ns": end_ns} if has_stopped else {}
        return {**defaults, **known, "started_ns": start_ns, **stopped, "last_flush_ns": end_ns}

    def _flush(self, table: str) -> None:
        rows = self._rows[table]
        if rows:
            self._written[table] += len(rows)
            name = f"{table}/import-{self._written[table]:012d}.parquet"
            arrow = pa.Table.from_pylist(rows, schema=arrow_schema(table))
            self._write(name, lambda part: pq.write_table(arrow, part, compression="zstd"))
            rows.clear()

    def _write_json(self, name: str, document: Mapping[str, object]) -> None:
        self._write(name, lambda part: part.write_text(json.dumps(document, indent=1), encoding="utf-8"))

    def _write(self, name: str, write: Callable[[Path], object]) -> None:
        """Write a file of the folder as a whole. Raises OutputError if that fails."""
        path = self.folder / name
        part = path.with_name(f".{path.name}.part")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write(part)
            os.replace(part, path)
        except OSError as error:
            raise OutputError.of(
                path, found=str(error), expected="a folder that can be written", next_step="Name another RUN_DIR."
            ) from error


def version_runs(parts: Iterable[tuple[int, int]]) -> list[dict[str, int]]:
    """Return the versions of a sample in the form of the format. parts: version and number of tokens, in order."""
    runs, start = list[dict[str, int]](), 0
    for version, tokens in parts:
        if tokens:
            runs.append({"version": version, "start": start, "end": start + tokens})
        start += tokens
    return runs


def _fits(table: str, row: Mapping[str, Any]) -> bool:
    """Whether the format can hold all integers of a row; this also bounds its times."""
    versions = [number for run in row.get("versions") or () for number in run.values()]
    return all(-most < (row.get(name) or 0) < most for name, most in _WHOLES[table]) and all(
        abs(number) < _LARGEST_VERSION for number in versions
    )
