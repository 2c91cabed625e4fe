"""Reads the files of one run into one run folder.

Files are joined on one clock. The trainer's metrics are read first: they set the time range into which logs without a
time zone are fitted, and time that they lack is left out of all files.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from shutil import rmtree
from tempfile import TemporaryDirectory, mkdtemp
from typing import TYPE_CHECKING, Final
from weakref import finalize

from rlscope.errors import ArgumentError, ImportFileError, OutputError
from rlscope.format import some
from rlscope.frameworks.table import Framework
from rlscope.importers.importer import Progress, no_progress, open_source, unpacked
from rlscope.importers.target import NO_OPTIONS, ImportOptions, ImportTarget
from rlscope.trace.imported import Imported
from rlscope.trace.manifest import RUN_FILE, run_folder

if TYPE_CHECKING:
    # The importers are slow to import, and a run folder needs none of them.
    from rlscope.importers.recognize import Recognized

_STORE: Final = re.compile(r"(s3|gs|gcs|abfss?):/{1,2}(?=[^/])")
"""Start of an address in an object store; a Path keeps only one of its slashes."""
RELATIVE_ORIGIN_NS: Final = 946_684_800 * 10**9
"""Start of a run whose files have no times: the beginning of 2000, which nobody takes for the run's date."""


class RunFolder:
    """A run folder. A temporary one is removed when nothing refers to this object any more."""

    def __init__(self, path: Path, *, is_temporary: bool = False) -> None:
        self.path = path
        self._is_temporary = is_temporary
        if is_temporary:
            finalize(self, rmtree, path, ignore_errors=True)

    def beside(self, name: str) -> Path:
        """Return the path for a file about the run: in its folder, or in the current folder for an imported run."""
        return Path(name) if self._is_temporary else self.path / name


def share_read(paths: Sequence[Path], say: Callable[[str], None]) -> Progress:
    """Return a progress callback that reports messages such as "reading run.log: 40%"."""
    total = sum(path.stat().st_size for path in paths if path.is_file())
    read, shown, name = 0, -1, paths[0].name

    def count(size: int) -> None:
        nonlocal read, shown
        read += size
        percent = min(100, 100 * read // total) if total else 0
        if percent > shown:
            shown = percent
            say(f"reading {name}: {percent}%" if total else f"reading {name}")

    return count


def resolve(path: Path, options: ImportOptions | None = None, say: Callable[[str], None] | None = None) -> RunFolder:
    """Return the run folder for a path: the path itself, or a temporary folder.

    A log or metrics file is imported into a temporary folder.

    Raises ImportFileError if no importer recognizes the file, and ArgumentError if import options are given for a run
    folder, or for an address in an object store, which is not repeated: it may contain credentials.
    """
    if _STORE.match(str(path)):
        raise ArgumentError.of(
            "the run",
            found="an address in an object store",
            expected="a folder or a file of this machine",
            next_step="Copy the run first, such as with `aws s3 sync ADDRESS FOLDER`, and analyze the copy.",
        )
    asked, path = options is not None and options != NO_OPTIONS, run_folder(path)
    if (path / RUN_FILE).is_file():
        if asked:
            raise ArgumentError.of(
                path,
                found="a run folder with import options",
                expected="import options only with a log or metrics file",
                next_step="Omit the options.",
            )
        return RunFolder(path)
    is_run_in_part = (path / "workers").is_dir() or not path.exists() or (path.is_dir() and not any(path.iterdir()))
    if is_run_in_part and not asked:
        return RunFolder(path)
    options = options or NO_OPTIONS
    progress = share_read((path, *options.with_files, *options.engine_logs), say) if say else no_progress
    made = RunFolder(Path(mkdtemp(prefix="rlscope-import-")), is_temporary=True)
    import_run(path, made.path, options, progress)
    return made


def import_run(
    path: Path,
    folder: Path,
    options: ImportOptions = NO_OPTIONS,
    progress: Progress = no_progress,
    *,
    is_growing: bool = False,
    relative_origin_ns: int = RELATIVE_ORIGIN_NS,
) -> Imported:
    """Import a log or metrics file, and the further files in the options, into an empty folder.

    is_growing: the run goes on, so its workers have no end.
    relative_origin_ns: start of a run whose files have no times, UTC epoch.

    Raises ImportFileError if no importer recognizes the file or it contains no step, OutputError if the folder is not
    empty or cannot be written.
    """
    with TemporaryDirectory(prefix="rlscope-unpacked-") as temporary:
        files, logs = (
            tuple(unpacked(each, Path(temporary)) for each in given)
            for given in ((path, *options.with_files), options.engine_logs)
        )
        try:
            target = ImportTarget(
                folder,
                files[0].resolve().stem or "imported",
                replace(options, with_files=files[1:], engine_logs=logs),
                relative_origin_ns=relative_origin_ns,
                given=files[0],
                is_growing=is_growing,
            )
            return _import(target, progress)
        except ImportFileError as error:
            # An unpacked file has the path of the compressed one below the temporary folder.
            raise ImportFileError(str(error).replace(temporary, "")) from error


def _import(target: ImportTarget, progress: Progress) -> Imported:
    from rlscope.importers.recognize import NAMED, recognize, rotated_parts
    from rlscope.importers.steps import has_steps_of

    path, folder, options = target.given, target.folder, target.options
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise OutputError.of(
            folder, found="existing files", expected="a new or empty folder", next_step="Name another folder."
        )
    first = recognize(path, options.framework, options.own)
    others = [_joined(each, first.importer.name, options.own) for each in options.with_files]
    # The engines of a run that goes on may come later.
    logs = options.engine_logs
    if target.is_growing:
        logs = [each for each in logs if each.is_file() or (each / RUN_FILE).is_file()]
    engines = [_of_engines(each, options.own) for each in logs]
    files = (first, *others)
    _refuse_same_steps(files)
    if unread := [str(each.relative_to(path)) for each in first.passed_over if each not in options.with_files]:
        target.note(f"Not read: {some(unread, NAMED)}. Pass one by name, or with --with if it is part of this run")
    if parts := rotated_parts(first.source.path):
        name, join = first.source.path.name, f"zcat -f {' '.join(parts)} {first.source.path.name} > all.log"
        target.note(f"Not read: {some(parts, NAMED)}, earlier parts of {name}. Join them: {join}")
    target.knows_samplers = bool(engines) or any(has_steps_of("sampler", each.source) for each in files)
    # The trainer's metrics come first, then other files, then files that only add to them.
    for each in sorted(files, key=lambda each: 2 if each.importer.is_companion else not each.tells_trainer):
        each.importer.read(each.source, target, progress)
    for each in files:
        for companion in each.companions:
            companion.read(each.source, target, no_progress)
    for each in engines:
        each.importer.read(each.source, target, progress)
    if target.extent() is None:
        raise ImportFileError.of(
            path,
            found="no step with a duration",
            expected="steps with times",
            next_step="Pass another file of the run.",
        )
    return target.finish(first.importer.name)


def _refuse_same_steps(files: "Sequence[Recognized]") -> None:
    """Raise ImportFileError if two files have trainer steps, which would be counted twice, or are of two frameworks."""
    runs = [each for each in files if not each.importer.is_companion]
    if other := next((each for each in runs if each.importer.name != runs[0].importer.name), None):
        raise ImportFileError.of(
            other.source.path,
            found=f"a run of {other.importer.name}",
            expected=f"a file of the same run as {runs[0].source.path}, which is of {runs[0].importer.name}",
            next_step="Omit it, or pass it alone.",
        )
    same = [each.source.path for each in runs if each.tells_trainer]
    if len(same) > 1:
        raise ImportFileError.of(
            same[1],
            found=f"trainer steps, which {same[0]} has too",
            expected="one file with trainer steps",
            next_step="Omit one of the two. Prefer a .wandb file or TensorBoard events, which have times.",
        )


def _joined(path: Path, framework: str, own: Framework | None) -> "Recognized":
    """Detect what a further file is; if it is ambiguous, it is taken to be of the same framework."""
    from rlscope.importers.recognize import recognize

    try:
        return recognize(path, own=own)
    except ImportFileError:
        if own is not None:
            raise
        return recognize(path, framework)


def _of_engines(path: Path, own: Framework | None) -> "Recognized":
    """Detect what an engine's log is; it may be the run folder of engines, which no other option takes."""
    from rlscope.importers.engine_folder import ENGINE_FOLDER
    from rlscope.importers.recognize import Recognized, recognize

    folder = run_folder(path)
    if (folder / RUN_FILE).is_file():
        return Recognized(open_source(folder), ENGINE_FOLDER)
    return recognize(path, own=own)
