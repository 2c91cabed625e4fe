"""The run folder that an import fills: rows of the trace format, workers, and run.json with where each came from.

Rows are written in batches as they come, so that a log of gigabytes takes constant memory.
"""

import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from rlscope_otel.schema import FORMAT_NAME, FORMAT_VERSION, TABLES, arrow_schema

from rlscope.errors import OutputError
from rlscope.format import counted
from rlscope.trace.footers import LATEST_NS
from rlscope.trace.imported import Certainty, Clock, Imported, SourceFile, TableOrigin, as_document

_BATCH_ROWS: Final = 20_000
_LARGEST_VERSION: Final = 1 << 31
_TIMES: Final = frozenset(
    ("start_ns", "end_ns", "time_ns", "submitted_ns", "started_ns", "finished_ns", "queued_ns", "taken_ns")
)
_WHOLES: Final = {
    table: tuple(
        (column.name, min(LATEST_NS, 1 << (column.type.bit_width - 1)))
        for column in columns
        if pa.types.is_integer(column.type)
    )
    for table, columns in TABLES.items()
}
"""The columns of whole numbers, and what they are less than."""
_STRETCHES: Final = (("start_ns", "end_ns"), ("started_ns", "finished_ns"))
_REALS: Final = {
    table: tuple(column.name for column in columns if column.nullable and pa.types.is_floating(column.type))
    for table, columns in TABLES.items()
}


@dataclass(frozen=True, slots=True)
class ImportOptions:
    """What the user says about files that do not say it themselves."""

    framework: str | None = None
    """`--as`: None recognises the framework by what is in the files."""
    gpus: Mapping[str, int] = field(default_factory=dict[str, int])
    """`--gpus trainer=8,sampler=8`: GPUs by role."""
    gpus_per_engine: int | None = None
    utc_offset_s: int | None = None
    """Of the time stamps in a log that has no zone; None where it is not known."""
    year: int | None = None
    """Of the time stamps in a log that has no year; None takes the file's."""
    gpu_owners: Mapping[int, str] = field(default_factory=dict[int, str])
    """`--gpu-owner 0-3=trainer`: worker by index of the GPU."""
    with_files: tuple[Path, ...] = ()
    """`--with`: other files of the same run."""
    engine_logs: tuple[Path, ...] = ()
    """`--engine-log`: logs of the engines, one each."""


class StepTimes(NamedTuple):
    """What the samples of a step need of it."""

    generated_ns: int
    """When its generation ended."""
    trained_ns: int
    """When its training began."""
    version: int
    """The last one published before."""
    is_synchronous: bool
    """Whether that version sampled it."""


class ImportTarget:
    """Collects one run; several importers may fill it, each with what its file knows. Later facts never undo earlier.

    Times are nanoseconds since the UTC epoch. A file without times counts them from `relative_origin_ns`.
    """

    def __init__(self, folder: Path, run_id: str, *, relative_origin_ns: int, given: Path = Path()) -> None:
        """given: the file or folder that is imported; files in it are named by their path from there."""
        self.folder = folder
        self._given = given
        self.run_id = run_id
        self.relative_origin_ns = relative_origin_ns
        self.clock: Clock = "wall"
        self.is_thinned = False
        self.knows_samplers = False
        """Whether some file tells what the samplers do, so that nobody needs to infer it."""
        self._config: dict[str, object] = {}
        self._workers: dict[str, dict[str, object]] = {}
        self._extents: dict[str, tuple[int, int]] = {}
        self.samplers_id: str | None = None
        """The worker that generated, where one did for all of the run."""
        self.steps: dict[int, StepTimes] = {}
        """By step, for what tells of a step's samples but not when."""
        self._claimed: set[tuple[str, Path]] = set()
        self._engines: dict[str, None] = {}
        self._shared: list[tuple[str, dict[str, Any]]] = []
        self._origins: dict[str, TableOrigin] = {}
        self._coverage: dict[str, float] = {}
        self._notes: dict[str, str | None] = {}
        self._files: list[SourceFile] = []
        self._carriers: dict[str, None] = {}
        self._refusals: dict[str, None] = {}
        self._cuts: list[tuple[int, int]] = []
        self._refused = 0
        """Rows with a number that the format cannot hold."""
        self._rows: dict[str, list[dict[str, Any]]] = {table: [] for table in TABLES}
        self._written: dict[str, int] = dict.fromkeys(TABLES, 0)

    def add(self, table: str, row: Mapping[str, object]) -> None:
        """Add one row; columns that are left out are NULL, and a real number that is none (NaN, infinite) is NULL.

        Raises KeyError for a table or a column that the format does not have: a bug of the importer.
        """
        held = dict(row)
        for name in _REALS[table]:
            value = held.get(name)
            if isinstance(value, float) and not math.isfinite(value):
                held[name] = None
        if not held.keys() <= {column.name for column in TABLES[table]}:
            raise KeyError(f"{table} has no {held.keys() - {column.name for column in TABLES[table]}}")
        if not _fits(table, held):
            self._refused += 1
            return
        if self._cuts and not self._shift(held):
            return
        if held.get("phase") == "apply" or held.get("reason") == "requests":
            self._shared.append((table, held))
        rows = self._rows[table]
        rows.append(held)
        if len(rows) >= _BATCH_ROWS:
            self._flush(table)

    def add_worker(self, worker_id: str, role: str, **facts: object) -> None:
        """Add a worker, or what an earlier file did not know of it: host, gpu_count, device_name, max_running, ..."""
        worker = self._workers.setdefault(worker_id, {"worker_id": worker_id, "role": role})
        for name, value in facts.items():
            if worker.get(name) is None:
                worker[name] = value

    def leave_out(self, stretches: Sequence[tuple[int, int]]) -> None:
        """Cut these stretches (ns) out of the run's time: later rows inside are dropped, and times after them move up.

        For files of which only some steps are there: the rest of the run keeps its shares of time. To be called before
        the first row of a run is added.
        """
        self._cuts = sorted([*self._cuts, *stretches])

    def _shift(self, row: dict[str, Any]) -> bool:
        """Move a row's times to where they are once the cuts are made; False for a row of which nothing is left."""
        lengths = [row[end] - row[start] for start, end in _STRETCHES if row.get(start) is not None and end in row]
        for name in _TIMES & row.keys():
            if row[name] is not None:
                row[name] = self._moved(row[name])
        left = [row[end] - row[start] for start, end in _STRETCHES if row.get(start) is not None and end in row]
        return not any(before > 0 >= after for before, after in zip(lengths, left, strict=True))

    def _moved(self, time_ns: int) -> int:
        return time_ns - sum(min(end, time_ns) - start for start, end in self._cuts if start < time_ns)

    def add_engine(self, worker_id: str, **facts: object) -> None:
        """Add one engine of the samplers, as its own log tells it.

        The steps of a run know only of samplers as a whole. With engines in it, that worker gives them its GPUs.
        """
        self.add_worker(worker_id, "sampler", **facts)
        self._engines[worker_id] = None

    def setting(self, name: str) -> object:
        """A setting of the run that was added before; None where there is none."""
        return self._config.get(name)

    @property
    def engines(self) -> tuple[str, ...]:
        """The engines added so far."""
        return tuple(self._engines)

    def extend_worker(self, worker_id: str, start_ns: int, end_ns: int) -> None:
        """Widen a worker's extent to hold this stretch, unless no clock has such times."""
        if not -LATEST_NS < start_ns <= end_ns < LATEST_NS:
            return
        start_ns, end_ns = self._moved(start_ns), self._moved(end_ns)
        start, end = self._extents.get(worker_id, (start_ns, end_ns))
        self._extents[worker_id] = (min(start, start_ns), max(end, end_ns))

    def extent(self) -> tuple[int, int] | None:
        """From the first start to the last end of all workers, ns; None while there is none."""
        if not self._extents:
            return None
        return min(start for start, _ in self._extents.values()), max(end for _, end in self._extents.values())

    def add_config(self, **settings: object) -> None:
        """Settings of the run, by their names in run.json; None and what is already known change nothing."""
        for name, value in settings.items():
            if value is not None:
                self._config.setdefault(name, value)

    def say_origin(self, table: str, certainty: Certainty, rule: str | None = None) -> None:
        """How sure a table's rows are; of several importers' rows, the least sure counts."""
        known = self._origins.get(table)
        order = list(Certainty)
        if known is None or order.index(certainty) > order.index(known.certainty):
            self._origins[table] = TableOrigin(certainty, rule)

    def say_coverage(self, worker_id: str, ratio: float) -> None:
        """Share of a worker's extent that the files cover, 0 to 1."""
        self._coverage[worker_id] = min(ratio, self._coverage.get(worker_id, 1.0))

    def refuse_verdict(self, reason: str) -> None:
        """Why what the files hold is no ground for a verdict."""
        self._refusals[reason] = None

    def note(self, sentence: str, *, unless: str | None = None) -> None:
        """What cannot be known, and the file or flag that would bring it; said once, with or without its full stop.

        unless: a table; with rows in it, from this file or a later one, the sentence is not true and not said.
        """
        self._notes[sentence.removesuffix(".")] = unless

    def claim(self, path: Path, kind: str) -> bool:
        """Whether nobody has read this file as this kind yet: an engine's lines may be in the trainer's own log."""
        is_new = (kind, path) not in self._claimed
        self._claimed.add((kind, path))
        return is_new

    def add_file(self, carrier: str, file: SourceFile) -> None:
        """A file that was read, and what kind it is."""
        self._carriers[carrier] = None
        path = Path(file.name)
        is_inside = path != self._given and path.is_relative_to(self._given)
        self._files.append(replace(file, name=str(path.relative_to(self._given)) if is_inside else path.name))

    def rows_of(self, table: str) -> int:
        """Rows added so far."""
        return self._written[table] + len(self._rows[table])

    def finish(self, framework: str, era: str | None) -> Imported:
        """Write what is left, the workers and run.json. Raises OutputError."""
        self._settle_engines()
        self._settle_gpus()
        if self._refused:
            self.note(f"{counted(self._refused, 'row', 'rows')} left out: a number or a time is out of range")
        imported = Imported(
            framework=framework,
            era=era,
            carriers=tuple(self._carriers),
            files=tuple(self._files),
            clock=self.clock,
            tables=dict(self._origins),
            coverage=dict(self._coverage),
            is_thinned=self.is_thinned,
            notes=tuple(note for note, table in self._notes.items() if table is None or not self.rows_of(table)),
            no_verdict=tuple(self._refusals),
        )
        for table in TABLES:
            self._flush(table)
        for worker_id in self._workers:
            self._write_json(f"workers/{worker_id}.json", self._worker_document(worker_id))
        extent = self.extent()
        document = {
            "format": FORMAT_NAME,
            "version": FORMAT_VERSION,
            "run_id": self.run_id,
            "created_ns": extent[0] if extent else self.relative_origin_ns,
            "config": {"framework": framework, **self._config},
            "imported": as_document(imported),
        }
        # Last: a folder without run.json is no run, so an import that is killed leaves none behind.
        self._write_json("run.json", document)
        return imported

    def _settle_engines(self) -> None:
        """Share out the GPUs of the samplers as a whole, and when they applied weights or idled, among the engines."""
        if not self._engines:
            return
        others = {name: worker for name, worker in self._workers.items() if name not in self._engines}
        wholes = {name: worker for name, worker in others.items() if worker["role"] == "sampler"}
        gpus = sum(int(str(worker.get("gpu_count") or 0)) for worker in wholes.values())
        is_colocated = any(worker["role"] == "colocated" for worker in others.values())
        for engine in self._engines:
            worker = self._workers[engine]
            if is_colocated:
                worker["gpu_count"] = 0
            elif gpus:
                worker["gpu_count"] = gpus // len(self._engines)
            elif worker.get("gpu_count") is None:
                worker["gpu_count"] = 1
                self.note("The engine logs do not state GPUs per engine; 1 is assumed. Pass --gpus-per-engine.")
        if is_colocated:
            self.note("The engines share the training GPUs, so engine rows are not added to the ledger.")
        for name, worker in wholes.items():
            worker["gpu_count"] = 0
            if name in self._extents:
                for engine in self._engines:
                    self.extend_worker(engine, *self._extents[name])
        for table, row in [each for each in self._shared if each[1]["worker_id"] in wholes]:
            for engine in self._engines:
                self.add(table, {**row, "worker_id": engine})

    def _settle_gpus(self) -> None:
        """One GPU for each worker whose GPUs no file names: shares of time are then right, and GPU-hours are not."""
        unknown = [
            name
            for name, worker in self._workers.items()
            if worker["role"] != "controller" and worker.get("gpu_count") is None
        ]
        for name in unknown:
            self._workers[name]["gpu_count"] = 1
        if unknown:
            self.note(f"No file states the GPUs of {', '.join(sorted(unknown))}; 1 each is assumed. Pass --gpus ROLE=N")

    def _worker_document(self, worker_id: str) -> dict[str, object]:
        start_ns, end_ns = self._extents.get(worker_id, (self.relative_origin_ns, self.relative_origin_ns))
        defaults: dict[str, object] = {"host": "unknown", "gpu_count": 0}
        known = {name: value for name, value in self._workers[worker_id].items() if value is not None}
        return {**defaults, **known, "started_ns": start_ns, "stopped_ns": end_ns, "last_flush_ns": end_ns}

    def _flush(self, table: str) -> None:
        rows = self._rows[table]
        if not rows:
            return
        self._written[table] += len(rows)
        path = self.folder / table / f"import-{self._written[table]:012d}.parquet"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            part = path.with_name(f".{path.name}.part")
            pq.write_table(_arrow(table, rows), part, compression="zstd")
            os.replace(part, path)
        except OSError as error:
            raise OutputError.of(
                path, found=str(error), expected="a folder that can be written", next_step="Name another RUN_DIR."
            ) from error
        rows.clear()

    def _write_json(self, name: str, document: Mapping[str, object]) -> None:
        path = self.folder / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(document, indent=1), encoding="utf-8")
        except OSError as error:
            raise OutputError.of(
                path, found=str(error), expected="a folder that can be written", next_step="Name another RUN_DIR."
            ) from error


def _fits(table: str, row: Mapping[str, Any]) -> bool:
    """Whether the format holds all whole numbers of a row, which also bounds its times to those of a clock."""
    versions = [number for run in row.get("versions") or () for number in run.values()]
    return all(-most < (row.get(name) or 0) < most for name, most in _WHOLES[table]) and all(
        abs(number) < _LARGEST_VERSION for number in versions
    )


def _arrow(table: str, rows: Iterable[Mapping[str, object]]) -> pa.Table:
    return pa.Table.from_pylist([dict(row) for row in rows], schema=arrow_schema(table))
