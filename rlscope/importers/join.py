"""Reads the files of one run into one run folder: the one that tells the run, what else it says, and what joins it.

Files are joined on one clock. The trainer's metrics come first: they set the extent that logs without a zone are fitted
into, and what they lack is left out of everything.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Final
from weakref import finalize

from rlscope.errors import ArgumentError, ImportFileError, OutputError
from rlscope.importers.target import ImportOptions, ImportTarget
from rlscope.trace.files import RUN_FILE, run_folder
from rlscope.trace.imported import Imported
from rlscope.trace.remote import fetch_run, is_remote, shown_address

if TYPE_CHECKING:
    # The importers are slow to import, and a run folder needs none of them.
    from rlscope.importers.importer import Progress
    from rlscope.importers.recognise import Recognised

NO_OPTIONS: Final = ImportOptions()
RELATIVE_ORIGIN_NS: Final = 946_684_800 * 10**9
"""Where a run begins whose files have no times: at the start of the year 2000, which no reader takes for its date."""


class RunFolder:
    """A run folder. One that was made for the time being is removed when nothing refers to this object any more."""

    def __init__(self, path: Path, *, is_temporary: bool = False) -> None:
        self.path = path
        self._is_temporary = is_temporary
        if is_temporary:
            finalize(self, rmtree, path, ignore_errors=True)

    def beside(self, name: str) -> Path:
        """Where a file about the run goes: into its folder, or into the current one for a run that was imported."""
        return Path(name) if self._is_temporary else self.path / name


def no_progress(_bytes: int) -> None:
    """Progress that is not shown."""


def no_words(_words: str) -> None:
    """Progress in words that is not shown."""


def share_read(paths: Sequence[Path], say: Callable[[str], None]) -> "Progress":
    """Progress in words, such as "reading run.log: 40%"."""
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
    """The run folder that a path means: itself, or one for the time being.

    A log or metrics file is imported into that one, and a run in an object store is copied into it. Raises
    ImportFileError for what no importer knows, ArgumentError for options of an import with a run folder, and what
    `fetch_run` does.
    """
    asked = options is not None and options != NO_OPTIONS
    is_far, path = is_remote(path), run_folder(path)
    if is_far or (path / RUN_FILE).is_file():
        if asked:
            raise ArgumentError.of(
                shown_address(path) if is_far else path,
                found="a run folder with import options",
                expected="import options only with a log or metrics file",
                next_step="Omit the options.",
            )
        return RunFolder(fetch_run(path, say or no_words), is_temporary=True) if is_far else RunFolder(path)
    is_run_in_part = (path / "workers").is_dir() or not path.exists() or (path.is_dir() and not any(path.iterdir()))
    if is_run_in_part and not asked:
        return RunFolder(path)
    options = options or NO_OPTIONS
    progress = share_read((path, *options.with_files, *options.engine_logs), say) if say else no_progress
    made = RunFolder(Path(mkdtemp(prefix="rlscope-import-")), is_temporary=True)
    import_run(path, made.path, options, progress)
    return made


def import_run(
    path: Path, folder: Path, options: ImportOptions = NO_OPTIONS, progress: "Progress" = no_progress
) -> Imported:
    """Import a log or metrics file, with what the options add to it, into an empty folder.

    Raises ImportFileError for a file that no importer knows or that holds no step, OutputError.
    """
    from rlscope.importers.recognise import first_few, recognise
    from rlscope.importers.steps import tells_samplers

    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise OutputError.of(
            folder, found="existing files", expected="a new or empty folder", next_step="Name another folder."
        )
    first = recognise(path, options.framework)
    others = [_joined(each, first.importer.name) for each in options.with_files]
    engines = [_joined(each, None) for each in options.engine_logs]
    _refuse_same_steps((first, *others))
    target = ImportTarget(folder, _run_id(path), relative_origin_ns=RELATIVE_ORIGIN_NS, given=path)
    if unread := [str(each.relative_to(path)) for each in first.passed_over if each not in options.with_files]:
        target.note(f"Not read: {first_few(unread)}. Pass one by name, or with --with if it is part of this run")
    target.knows_samplers = bool(engines) or any(tells_samplers(each.source) for each in (first, *others))
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
            path,
            found="no step with a duration",
            expected="steps with times",
            next_step="Pass another file of the run.",
        )
    return target.finish(first.importer.name, ", ".join(eras) or None)


def _refuse_same_steps(files: "Sequence[Recognised]") -> None:
    """Two logs of one trainer would count each of its steps twice."""
    from rlscope.importers.steps import has_trainer_steps

    same = [each.source.path for each in files if not each.importer.is_companion and has_trainer_steps(each.source)]
    if len(same) > 1:
        raise ImportFileError.of(
            same[1],
            found=f"trainer steps, which {same[0]} has too",
            expected="one file with trainer steps",
            next_step="Omit one of the two. Prefer a .wandb file or TensorBoard events, which have times.",
        )


def _joined(path: Path, framework: str | None) -> "Recognised":
    """What a further file is: of the same framework where it could be several things."""
    from rlscope.importers.recognise import recognise

    try:
        return recognise(path)
    except ImportFileError:
        if framework is None:
            raise
        return recognise(path, framework)


def _rank(each: "Recognised") -> int:
    """The trainer's metrics first, then other files, then what only adds to them."""
    from rlscope.importers.steps import has_trainer_steps

    if each.importer.is_companion:
        return 2
    return 0 if has_trainer_steps(each.source) else 1


def _run_id(path: Path) -> str:
    name = path.resolve().name
    return Path(name).stem or name or "imported"
