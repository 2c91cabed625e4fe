"""A run folder of engines, recorded beside a trainer's log: by `rlscope watch --scrape`, or by hooks in the engines."""

from typing import Final

from rlscope_otel.schema import TABLES

from rlscope.errors import ImportFileError
from rlscope.importers.importer import Importer, ImportSource, Progress
from rlscope.importers.log_clock import offset_into_run_s
from rlscope.importers.quantities import SECOND_NS
from rlscope.importers.target import TIMES, ImportTarget
from rlscope.trace.imported import Certainty, SourceFile
from rlscope.trace.manifest import RUN_FILE
from rlscope.trace.query import stored_rows
from rlscope.trace.store import open_run
from rlscope.trace.worker_files import read_workers

_FACTS: Final = ("host", "device_name", "kv_capacity_tokens", "max_running")


def _recognize(source: ImportSource) -> bool:
    return (source.path / RUN_FILE).is_file()


def _read(source: ImportSource, target: ImportTarget, _progress: Progress) -> None:
    """Add the engines of a run folder with their rows, those that lie within the run.

    Raises ImportFileError if there are none, and the errors of `open_run`.
    """
    workers, _ = read_workers(source.path)
    engines = {each.worker_id: each for each in workers if each.role == "sampler"}
    extents = {name: (each.started_ns, max(each.started_ns, each.end_ns or 0)) for name, each in engines.items()}
    if not engines:
        return _missing(source, target, "no sampler", "the run folder of engines")
    recorded_ns = min(start for start, _ in extents.values()), max(end for _, end in extents.values())
    shift_ns = SECOND_NS * offset_into_run_s(source.path, recorded_ns, target)
    from_ns, until_ns = target.extent() or recorded_ns
    if target.is_growing:
        # The engines are ahead of the newest line of the log.
        until_ns = max(until_ns, recorded_ns[1] - shift_ns)
    moved = {
        name: (max(start - shift_ns, from_ns), min(end - shift_ns, until_ns)) for name, (start, end) in extents.items()
    }
    inside = {name: extent_ns for name, extent_ns in moved.items() if extent_ns[0] < extent_ns[1]}
    if not inside:
        return _missing(source, target, "engines of before or after the run", "engines that served the run")
    for name, extent_ns in inside.items():
        # A scrape assumes one GPU.
        gpus = target.options.gpus_per_engine or max(engines[name].gpu_count, target.gpus_per_engine or 0)
        target.add_engine(name, gpu_count=gpus, **{fact: getattr(engines[name], fact) for fact in _FACTS})
        target.extend_worker(name, *extent_ns)
    rows = 0
    with open_run(source.path) as run:
        for table in TABLES:
            for row in stored_rows(run, table):
                moved_ns = {name: row[name] - shift_ns for name in TIMES & row.keys() if row[name] is not None}
                first_ns, last_ns = min(moved_ns.values()), max(moved_ns.values())
                if row["worker_id"] in inside and first_ns < until_ns and from_ns < last_ns:
                    target.add(table, row | moved_ns)
                    rows += 1
    target.say_origins(Certainty.RECORDED, *TABLES)
    target.add_file("engine run folder", SourceFile(str(source.path), 0, rows))


def _missing(source: ImportSource, target: ImportTarget, found: str, expected: str) -> None:
    """Raise ImportFileError, unless the run goes on and engines may still come."""
    if not target.is_growing:
        raise ImportFileError.of(
            source.path,
            found=found,
            expected=expected,
            next_step="Pass the folder that `rlscope watch --scrape` wrote for this run, or the engines' logs.",
        )


ENGINE_FOLDER: Final = Importer("rlscope", "run folder of engines", _recognize, _read, is_companion=True)
