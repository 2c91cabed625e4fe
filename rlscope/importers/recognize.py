"""Detects from its contents which importer reads a file, and which file of a folder to read.

If several frameworks match, an error names them, and the user chooses with `--as`.
"""

import os
import re
import shlex
from codecs import BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from fnmatch import fnmatch
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Final, NamedTuple

from rlscope.errors import ArgumentError, ImportFileError
from rlscope.format import counted, printable, some
from rlscope.frameworks import frameworks
from rlscope.frameworks.table import NO_LINE, Framework
from rlscope.importers.areal import AREAL_SESSIONS
from rlscope.importers.block_console import block_console, prints_blocks
from rlscope.importers.console import CONSOLE, durations_in, is_duration
from rlscope.importers.importer import FURTHER_BYTES, HEAD_BYTES, Importer, ImportSource, open_source
from rlscope.importers.lines import clean_lines
from rlscope.importers.miles import MILES_DASHBOARD
from rlscope.importers.nemo_rl_samples import NEMO_RL_SAMPLES
from rlscope.importers.prime_rl import PRIME_RL
from rlscope.importers.records import PARQUET, TRAINER_STATE
from rlscope.importers.sglang import SGLANG_LOG
from rlscope.importers.sglang_requests import SGLANG_REQUESTS
from rlscope.importers.step_rows import step_importer
from rlscope.importers.steps import CARRIERS, carrier_of, has_steps_of, known_names, names_in
from rlscope.importers.tensorboard import TENSORBOARD
from rlscope.importers.timer_console import timer_console
from rlscope.importers.vllm import VLLM_LOG
from rlscope.importers.wandb import WANDB
from rlscope.input_file import did_you_mean
from rlscope.trace.imported import SourceFile
from rlscope.trace.manifest import RUN_FILE, run_folder, runs_below


def _consoles(table: Framework) -> list[Importer]:
    """Return the importers of the consoles that a framework's table describes."""
    timers = [timer_console(table)] if table.console.timer is not NO_LINE else []
    return [*timers, *([block_console(table)] if prints_blocks(table) else [])]


IMPORTERS: Final[tuple[Importer, ...]] = (
    *chain.from_iterable(map(_consoles, frameworks())),
    PRIME_RL,
    MILES_DASHBOARD,
    AREAL_SESSIONS,
    *(step_importer(each) for each in frameworks() if each.phases),
    SGLANG_LOG,
    SGLANG_REQUESTS,
    NEMO_RL_SAMPLES,
    VLLM_LOG,
)
"""All importers. Those with the same name are tried in this order; importers that only add to a run come last."""
_FILES_LOOKED_AT: Final = 500
_NAMES_LOOKED_AT: Final = 50_000
_DEEPEST: Final = 5
NAMED: Final = 5
_NEIGHBORS: Final = 20
_FEWEST_KEYS: Final = 3
"""Metrics below which a log has none: some of its lines look like a metric."""
_LOOKS_LIKE_RATIO: Final = 0.5
"""Least share of a file's metrics that a framework's table names if the file looks like that framework."""
_NAMED: Final = re.compile(r"(?<![\w/])\w+(?:/[\w@&.-]*\w)+")
"""A name of a metric with its prefix."""
_PHASE_NAMES: Final = {
    "generate": "gen|rollout|sampl|collect",
    "train": "train|learn|update_(?:actor|policy)|^update(?:_time|_s)?$",
    "update": "weight|param|broadcast",
    "step": "step|total|iter|^all$",
}
"""Words in the names of durations, by phase. What trains a step is no step."""
_OF_STEP: Final = re.compile(r"(?i)(?:loss|reward|step|score)\w*['\"]?\s?[:=]?\s?-?\d")
"""A number that logs of training print."""
_SHOWN: Final = 80
"""Characters of a line that an error shows."""
_NO_PHASE: Final = re.compile("(?i)wait|idle|_to_|(?:train|learn).*total")
"""Waits, switches, and totals of one phase are not suggested: copied, they would give a wrong verdict."""


class Recognized(NamedTuple):
    """A source, the importer that reads it, and importers that add more from the same file."""

    source: ImportSource
    importer: Importer
    companions: tuple[Importer, ...] = ()
    passed_over: tuple[Path, ...] = ()
    """Other candidate files of the folder, which are not read."""

    @property
    def tells_trainer(self) -> bool:
        """Whether the file has the trainer's steps."""
        return self.importer.is_console or has_steps_of("trainer", self.source)


def framework_names() -> tuple[str, ...]:
    """Return the values of `--as`."""
    return tuple(dict.fromkeys(each.name for each in IMPORTERS))


def recognize(path: Path, framework: str | None = None, own: Framework | None = None) -> Recognized:
    """Detect what a file or folder is; with a user's own table, whether it is a file of that framework.

    Raises ImportFileError if it is unknown or ambiguous, ArgumentError if the framework is unknown.
    """
    if framework is not None and framework not in framework_names():
        raise ArgumentError.of(
            "--as", found=repr(framework), expected="one of " + ", ".join(framework_names()), next_step="Name one."
        )
    source = _open(run_folder(path), own)
    if source.path.is_dir() and framework is None:
        _refuse_runs(source.path)
    found = _candidates(source, framework)
    if not found and source.path.is_dir():
        return _in_folder(path, framework, own)
    if not found and source.size > HEAD_BYTES:
        further = _open(source.path, own, FURTHER_BYTES)
        found = _candidates(further, framework)
        source = further if found else source
    if not found:
        raise _nothing_known(source, framework)
    return _the_one(source, found)


def _open(path: Path, own: Framework | None = None, head_bytes: int = HEAD_BYTES) -> ImportSource:
    try:
        return open_source(path, own, head_bytes)
    except OSError as error:
        is_readable_once = path.is_fifo() or path.is_char_device()
        raise ImportFileError.of(
            path,
            found="no such file or folder" if isinstance(error, FileNotFoundError) else error.strerror or str(error),
            expected="a file or folder that can be read",
            next_step="Write it to a file first, and pass that." if is_readable_once else "Check the path.",
        ) from error


def _refuse_runs(folder: Path) -> None:
    """Raise ImportFileError for a recorded run or a folder of runs, which a log beside them must not stand for."""
    if (folder / RUN_FILE).is_file():
        raise ImportFileError.of(
            folder,
            found="a recorded run",
            expected="a log or metrics file of a framework",
            next_step="A recorded run needs no import: pass its folder to `rlscope analyze`.",
        )
    runs = [str(each.relative_to(folder)) for each in runs_below(folder)]
    if runs:
        found = f"{counted(len(runs), 'recorded run', 'recorded runs')} below it"
        raise _several(folder, found, runs, "Pass one of them, or a log; `rlscope list` shows all runs.")


def _candidates(source: ImportSource, framework: str | None) -> list[Importer]:
    return [
        each
        for each in _importers(source.own)
        if framework in (None, each.name) or each.is_companion
        if each.recognize(source)
    ]


def _importers(own: Framework | None) -> tuple[Importer, ...]:
    if own is None:
        return IMPORTERS
    metrics = [step_importer(own)] if own.phases else []
    return (*_consoles(own), *metrics, *(each for each in IMPORTERS if each.is_companion))


def _the_one(source: ImportSource, found: Sequence[Importer]) -> Recognized:
    """Return the importer of the run and those that add to it; if all only add, the first one imports the run."""
    tellers = [each for each in found if not each.is_companion]
    if len({each.name for each in tellers}) > 1:
        kinds = " and ".join(each.kind for each in tellers)
        names = " or ".join(f"--as {name}" for name in dict.fromkeys(each.name for each in tellers))
        raise ImportFileError.of(source.path, found=kinds, expected="one framework", next_step=f"Pass {names}.")
    first = tellers[0] if tellers else found[0]
    return Recognized(source, first, tuple(each for each in found if each.is_companion and each is not first))


def _in_folder(folder: Path, framework: str | None, own: Framework | None) -> Recognized:
    """Return the best file of a folder; files with timestamps come before those without."""
    carriers = [None, *(each.name for each in CARRIERS)]
    runs: list[tuple[int, Recognized]] = []
    for path in islice(_files(folder), _FILES_LOOKED_AT):
        source = _open(path, own)
        found = _candidates(source, framework)
        if not all(each.is_companion for each in found):
            carrier = carrier_of(source)
            runs.append((carriers.index(carrier and carrier.name), _the_one(source, found)))
    if not runs:
        raise _nothing_known(_open(folder, own), framework)
    runs.sort(key=lambda run: run[0])
    same = [run for rank, run in runs if rank == runs[0][0]]
    if len(same) > 1 and (one := _one_run(same)) is not None:
        return one
    if len(same) > 1:
        names = [str(each.source.path.relative_to(folder)) for each in same]
        has_trainers = all(run.tells_trainer for run in same)
        then = "Pass one of them" + ("." if has_trainers else "; add other files of the same run with --with.")
        raise _several(folder, f"{len(names)} files that could be the run", names, then)
    return same[0]._replace(passed_over=tuple(run.source.path for _, run in runs[1:]))


def _one_run(found: Sequence[Recognized]) -> Recognized | None:
    """Return the files of one run as one, by where their writers put them; None if they may be of several runs.

    TensorBoard takes the files of one folder for one run, and W&B names its file after the run; each start of it writes
    one. The trainer state in a checkpoint has the rows of all earlier ones.
    """
    carriers, paths = {carrier_of(each.source) for each in found}, [each.source.path for each in found]
    outputs = {path.parent.parent if path.parent.name.startswith("checkpoint-") else path.parent for path in paths}
    if carriers == {TRAINER_STATE} and len(outputs) == 1:
        return max(found, key=lambda each: each.source.size)
    is_started_again = (carriers == {TENSORBOARD} and len({path.parent for path in paths}) == 1) or (
        carriers == {WANDB} and len({path.name for path in paths}) == 1
    )
    return found[0]._replace(source=replace(found[0].source, later=tuple(paths[1:]))) if is_started_again else None


def _several(folder: Path, what: str, names: Sequence[str], next_step: str) -> ImportFileError:
    found, expected = f"{what}: {some(names, NAMED)}", "one run, by its folder or its file"
    return ImportFileError.of(folder, found=found, expected=expected, next_step=next_step)


def rotated_parts(path: Path) -> list[str]:
    """Return the names of the earlier parts of a log, which a rotation left beside it, the oldest first."""
    part = re.compile(re.escape(path.name) + r"\.(\d{1,3})(?:\.gz)?")
    found = filter(None, (part.fullmatch(each.name) for each in path.parent.glob("*") if each.is_file()))
    return [each[0] for each in sorted(found, key=lambda each: -int(each[1]))]


def also_recognized(path: Path, given: Collection[Path], read: Iterable[SourceFile]) -> list[tuple[Path, str, str]]:
    """Return other files near a path that add to its run: path, kind, and the flag to pass.

    given: files that the user named. read: the files of the run.
    """
    folder = path if path.is_dir() else path.parent
    if (folder / "run.json").is_file() or not folder.is_dir():
        return []
    run = None
    with suppress(ImportFileError):
        run = recognize(path)
    known = {each.resolve() for each in (*given, *(folder / file.name for file in read))}
    found: list[tuple[Path, str, str]] = []
    for other in islice(_files(folder, _DEEPEST if path.is_dir() else 1), _NEIGHBORS):
        more = _recognized(other) if other.resolve() not in known else None
        if more is not None and more.importer.is_companion:
            found.append((other, more.importer.kind, "pass it with --engine-log"))
        elif more is not None and (run is None or _adds_to(run, more)):
            found.append((other, more.importer.kind, "pass it with --with if it is part of the same run"))
    return found


def _recognized(path: Path) -> Recognized | None:
    source = _open(path)
    return next((Recognized(source, each) for each in _candidates(source, None)), None)


def _adds_to(run: Recognized, other: Recognized) -> bool:
    """Whether a file may be of the same run: of the same framework, and without the same trainer's steps again."""
    if run.importer.is_companion:
        return True
    return run.importer.name == other.importer.name and not (run.tells_trainer and other.tells_trainer)


def _files(folder: Path, deepest: int = _DEEPEST) -> Iterator[Path]:
    """Yield files whose names suggest metrics or logs, down to some depth, without following links."""
    patterns = tuple(dict.fromkeys(pattern for carrier in CARRIERS for pattern in carrier.files))
    seen = 0
    for where, folders, names in os.walk(folder):
        is_deep = len(Path(where).relative_to(folder).parts) >= deepest
        folders[:] = [] if is_deep else sorted(folders)
        for name in sorted(names):
            seen += 1
            path = Path(where, name)
            if any(fnmatch(name, each) for each in patterns) and path.is_file() and not path.is_symlink():
                yield path
        if seen > _NAMES_LOOKED_AT:
            return


class _Refusal(NamedTuple):
    """Words of the error for a file that no importer recognizes."""

    found: str
    expected: str
    next_step: str


def _nothing_known(source: ImportSource, framework: str | None) -> ImportFileError:
    """Return the error for a file or a folder that no importer recognizes, with the first reason that applies."""
    if source.own is not None:
        refusal = _not_of(source, source.own)
    elif framework is not None:
        refusal = _not_as(framework)
    else:
        reasons = (
            _without_phases,
            _unreadable_form,
            _closest,
            _with_durations,
            partial(_without_phases, is_engine=True),
        )
        refusal = next(filter(None, (reason(source) for reason in reasons)), None) or _Refusal(
            f"no run{_printed(source)}",
            "a run folder, or a log or metrics file of a framework that docs/importers.md lists",
            "Pass the log of the process that prints the metrics of a step, often the driver or rank 0. "
            "docs/importers.md also says what to do for your own framework.",
        )
    return ImportFileError.of(source.path, **refusal._asdict())


def _not_as(framework: str) -> _Refusal:
    """Refuse a file as one of the framework of `--as`."""
    kinds = " or ".join(each.kind for each in IMPORTERS if each.name == framework)
    known = next((known_names(each) for each in frameworks() if each.name == framework), "")
    return _Refusal(
        f"no metric that {framework} writes",
        f"{kinds} ({known})" if known else kinds,
        "Omit --as, or pass the file that `rlscope doctor` names.",
    )


def _with_durations(source: ImportSource) -> _Refusal | None:
    """Refuse a log of an unknown framework that prints durations; None for other files."""
    durations = durations_in(source.text)
    if not durations:
        return None
    if not _is_console(source):
        return _Refusal(
            "a log inside a table or a JSON document",
            "its lines as they were printed",
            "Save them as text, or as JSON lines with an object for each.",
        )
    return _Refusal(
        f"a log of no framework that rlscope knows, with the durations {some(durations, NAMED)}",
        "the names of the phases that they are of",
        f"Name those in seconds, as in {_phases_of(durations)}. docs/importers.md has the details.",
    )


def _is_console(source: ImportSource) -> bool:
    """Return whether a file is read as a console, whatever its lines look like."""
    carrier = carrier_of(source)
    return carrier is not None and carrier.name == CONSOLE.name


def _printed(source: ImportSource) -> str:
    """Return the line of a console that prints most about a step, as words after the error; empty if none does."""
    lines = [line.text for line in clean_lines(source.text)] if _is_console(source) else []
    fullest = max(lines, key=lambda line: len(_OF_STEP.findall(line)), default="")
    said = f", but lines such as '{printable(fullest.strip())[:_SHOWN]}'"
    return said if _OF_STEP.search(fullest) else ""


def _phases_of(durations: Iterable[str], framework: Framework | None = None) -> str:
    """Return the option that names the phases, with the durations of each that the table says, or that look like it."""
    known = _times(framework) if framework else {}
    ends = {name: re.split(r"[/.]", name)[-1].lower() for name in durations}
    found = {"step": "", "generate": "METRIC", "train": "METRIC", "update": ""}
    for phase, pattern in _PHASE_NAMES.items():
        stated = (name for name in ends if known.get(name) == phase)
        unknown = (name for name in ends if name not in known and not _NO_PHASE.search(name))
        likely = (name for name in unknown if re.search(pattern, ends[name]))
        name = next(chain(stated, likely), None)
        if name is not None:
            found[phase] = name
            del ends[name]
    return "--phases " + shlex.quote(",".join(f"{phase}={name}" for phase, name in found.items() if name))


def _times(framework: Framework) -> dict[str, str]:
    """Return what each metric in a framework's table times, as `--phases` names it; empty if it contains another."""
    times: dict[str, str] = {}
    for process in framework.phases.values():
        for each in process.order:
            times |= dict.fromkeys(each.names, "" if each.minus else each.kind.settled(is_separate=False))
        times |= dict.fromkeys(process.step, "step")
    return times


def _without_phases(source: ImportSource, *, is_engine: bool = False) -> _Refusal | None:
    """Refuse a file that lacks what to read, and name the file that has it.

    is_engine: whether to look for an engine's lines, which a trainer's log has too, rather than for a trainer's.
    """
    kind = "console log" if _is_console(source) else "metrics file"
    for each in frameworks():
        printed = "".join(f"'{each.bare(name)}': " for name in names_in(source))
        if bool(each.phases) is not is_engine and each.console.unread.search(source.text + printed):
            title = each.title.partition(" (")[0]
            lacks = "has none of its statistics" if is_engine else "does not show how long the phases of a step take"
            expected = known_names(each) or str(each.console.lines)
            return _Refusal(f"a {kind} of {title} that {lacks}", expected, f"Pass {each.console.file}.")
    return None


def _not_of(source: ImportSource, own: Framework) -> _Refusal:
    """Refuse a file without the metrics of the user's own table."""
    names = sorted({own.bare(name) for name in names_in(source)})
    near = next(filter(None, (did_you_mean(name, names) for name in sorted(own.wanted - {*names}))), "")
    step = "Name metrics that the file has." if names else "Pass a metrics file, or a log with `NAME: VALUE` lines."
    found = f"the metrics {some(names, NAMED)}" if names else "no metrics"
    return _Refusal(found, known_names(own), f"{near} {step}".strip())


def _closest(source: ImportSource) -> _Refusal | None:
    """Refuse a metrics file without step times, and say which framework it looks like; None for other files."""
    names = names_in(source) - {"", "step", "_step", "time", "_timestamp"}
    is_console, releases = _is_console(source), [each for table in frameworks() for each in table.releases()]
    if is_console and not names:
        # Lists of metrics are read only if they have all that identify a framework.
        names = frozenset().union(*(each.wanted for each in releases)) & {*_NAMED.findall(source.text)}
    if len(names) < (_FEWEST_KEYS if is_console else 1):
        return None
    known = {each: sum(map(each.knows, names)) for each in releases if any(map(each.names, names))}
    nearest = max(known, key=lambda each: (known[each], -len(_missing(each, names))), default=None)
    shown = sorted(names, key=lambda name: (not is_duration(name), name))
    if nearest is not None and known[nearest] < _LOOKS_LIKE_RATIO * len(names):
        nearest = None
    durations = [*filter(is_duration, shown)]
    phases = f"in seconds, as in {_phases_of(durations, nearest)}."
    if nearest is None and not durations:
        return _Refusal(
            f"{len(names):,} metrics of no framework that rlscope knows, and none of them a duration: "
            + some(shown, NAMED),
            "how long the phases of a step take",
            "Pass another file of the run that has it, often the console log, or record the run (docs/recording.md).",
        )
    if nearest is None:
        return _Refusal(
            f"{len(names):,} metrics of no framework that rlscope knows: {some(shown, NAMED)}",
            "metrics of a framework that docs/importers.md lists",
            f"Name the metrics of the phases, {phases} docs/importers.md has the details.",
        )
    missing, keys = " and ".join(f"`{name}`" for name in _missing(nearest, names)), f"{len(names):,} keys"
    return _Refusal(
        f"metrics that look like {nearest.title}, {known[nearest]} of {keys}, but not all step times",
        f"also {missing}" if missing else "a number behind the name of each",
        f"Pass the file that has them, or name the metrics of the phases, {phases}",
    )


def _missing(framework: Framework, names: Collection[str]) -> list[str]:
    """Return the fewest metrics that a file with these names lacks to be one of the framework."""
    bare = {framework.bare(name) for name in names}
    return min((sorted({*group} - bare) for group in framework.known_by), key=len, default=[])


_PACKED: Final = (b"\x28\xb5\x2f\xfd", b"\xfd7zXZ\x00", b"BZh", b"PK\x03\x04")
"""The first bytes of compressed files that are not read: zstandard, xz, bzip2 and zip."""


def _unreadable_form(source: ImportSource) -> _Refusal | None:
    """Refuse a file in a form that is not read; None for other files."""
    fault = _fault_of_form(source)
    return fault and _Refusal(fault[0], "a log or a metrics file", fault[1])


def _fault_of_form(source: ImportSource) -> tuple[str, str] | None:
    """Return what is wrong with the form of a file, and what to do; None if nothing is."""
    if source.head.startswith(_PACKED):
        return "a compressed file", "Unpack it and pass the files inside."
    if source.head.startswith((BOM_UTF16_LE, BOM_UTF16_BE)):
        return "text in UTF-16", "Convert it: iconv -f UTF-16 -t UTF-8 FILE > NEW_FILE."
    if source.path.suffix == ".csv" and b"__MIN" in source.head.split(b"\n", 1)[0]:
        return (
            "a chart exported from W&B, which has the metrics of that chart only",
            "Pass the .wandb file, or what run.scan_history() has.",
        )
    if re.search(rb"^(?:# TYPE )?(?:vllm|sglang):\w", source.head, re.MULTILINE):
        return (
            "a page of an engine's metrics, which has a single moment",
            "Record them beside the trainer's log: rlscope watch LOG --scrape http://HOST:PORT/metrics.",
        )
    if source.path.suffix == ".json" and re.match(rb'\s*\{\s*"schema_version"', source.head):
        return (
            "a result that rlscope wrote",
            "Pass the run or log that it is of; only `rlscope check RUN --baseline FILE` reads a result.",
        )
    if source.path.suffix == ".json" and source.head.lstrip().startswith(b"{") and not names_in(source):
        return "a JSON document, and no list of rows", "Save a list with an object for each step, or one object a line."
    if carrier_of(source) is WANDB and not names_in(source):
        return "a .wandb file without metrics", "Pass the one of the process that logs them, or the console log."
    if carrier_of(source) is PARQUET and not names_in(source):
        return "a Parquet file that is cut off, or has no metrics", "Export the history of the run again."
    if source.path.is_file() and not source.head.strip():
        return "an empty file", "Pass the file that the run writes to."
    return None
