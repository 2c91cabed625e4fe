"""Reads the files of one run into one run folder: the one that tells the run, what else it says, and what joins it.

Files are joined on one clock. The trainer's metrics come first: they set the extent that logs without a zone are fitted
into, and what they lack is left out of everything.
"""

from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from rlscope.errors import ArgumentError, ImportFileError, OutputError
from rlscope.importers.importer import Progress
from rlscope.importers.recognise import Recognised, recognise
from rlscope.importers.target import ImportOptions, ImportTarget
from rlscope.trace.imported import Imported

NO_OPTIONS: Final = ImportOptions()
_MANIFEST: Final = "run.json"


@dataclass(frozen=True, slots=True)
class RunFolder:
    """A run folder, and what keeps it: one that was imported for a while is removed with this object."""

    path: Path
    held: "TemporaryDirectory[str] | None" = None


def no_progress(_bytes: int) -> None:
    """Progress that is not shown."""


def resolve(path: Path, options: ImportOptions | None = None, progress: Progress = no_progress) -> RunFolder:
    """The run folder that a path means: itself, or one that a log or metrics file is imported into for the time being.

    Raises ImportFileError for what no importer knows, ArgumentError for options of an import with a run folder.
    """
    asked = options is not None and options != NO_OPTIONS
    if (path / _MANIFEST).is_file():
        if asked:
            raise ArgumentError.of(
                path,
                found="a run folder, and options for an import",
                expected="a log or a metrics file with them",
                next_step="Leave them out.",
            )
        return RunFolder(path)
    is_run_in_part = (path / "workers").is_dir() or not path.exists() or (path.is_dir() and not any(path.iterdir()))
    if is_run_in_part and not asked:
        return RunFolder(path)
    held = TemporaryDirectory(prefix="rlscope-import-")
    try:
        import_run(path, Path(held.name), options or NO_OPTIONS, progress)
    except BaseException:
        held.cleanup()
        raise
    return RunFolder(Path(held.name), held)


def import_run(
    path: Path, folder: Path, options: ImportOptions = NO_OPTIONS, progress: Progress = no_progress
) -> Imported:
    """Import a log or metrics file, with what the options add to it, into an empty folder.

    Raises ImportFileError for a file that no importer knows or that holds no step, OutputError.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise OutputError.of(
            folder, found="something already there", expected="a new or an empty folder", next_step="Name another."
        )
    first = recognise(path, options.framework)
    others = [_joined(each, first.importer.name) for each in options.with_files]
    engines = [_joined(each, None) for each in options.engine_logs]
    target = ImportTarget(folder, _run_id(path), relative_origin_ns=0)
    target.expects_engines = bool(engines)
    eras: dict[str, None] = {}
    for each in sorted((first, *others), key=_rank):
        era = each.importer.read(each.source, target, options, progress)
        if era is not None:
            eras[era] = None
    for each in (first, *others):
        for companion in each.companions:
            companion.read(each.source, target, options, no_progress)
    for each in engines:
        each.importer.read(each.source, target, options, progress)
    if target.extent() is None:
        raise ImportFileError.of(
            path, found="no step that lasted any time", expected="steps with their times", next_step="Pass another file."
        )
    return target.finish(first.importer.name, ", ".join(eras) or None)


def _joined(path: Path, framework: str | None) -> Recognised:
    """What a further file is: of the same framework where it could be several things."""
    try:
        return recognise(path)
    except ImportFileError:
        if framework is None:
            raise
        return recognise(path, framework)


def _rank(each: Recognised) -> int:
    return int(each.importer.is_companion)


def _run_id(path: Path) -> str:
    name = path.resolve().name
    return Path(name).stem or name or "imported"
