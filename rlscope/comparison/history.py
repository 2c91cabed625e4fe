"""Lists the runs below a folder, with one entry per run from its analysis.

Entries are cached in rlscope/runs under $XDG_CACHE_HOME or ~/.cache, never in the run's folder, which may be read-only
or shared. An entry is valid while the version of rlscope and the names, sizes and modification times of the run's files
are unchanged. An entry that cannot be read is rebuilt; one that cannot be written is not cached.
"""

import hashlib
import json
import operator
import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from rlscope.analysis.result import AnalysisResult, at_least
from rlscope.document import as_dict, extended, load
from rlscope.errors import ArgumentError, RlscopeError, RunFolderError
from rlscope.pipeline import analyze
from rlscope.trace.manifest import RUN_FILE, run_folder, runs_below

_FORMAT: Final = 1
"""Format of the cache; entries of other formats are rebuilt."""

Value = str | int | float | None


@dataclass(frozen=True, slots=True)
class RunEntry:
    """A run of the list. Fields are None if unknown."""

    path: str
    """Folder of the run, relative to the listed folder."""
    run_id: str
    """Identifier of the run; the name of its folder if the run could not be read."""
    started_ns: int | None = None
    """Start of the run, in UTC epoch nanoseconds."""
    duration_s: float | None = None
    """Length of the run, in seconds."""
    framework: str | None = None
    """Framework named in the run's config."""
    trainer_gpus: int | None = None
    """Trainer GPUs."""
    sampler_gpus: int | None = None
    """Sampler GPUs."""
    colocated_gpus: int | None = None
    """GPUs that both train and sample."""
    max_running: int | None = None
    """Limit on running requests of an engine in the run's config."""
    steps: int | None = None
    """Optimizer steps."""
    tokens_per_s: float | None = None
    """Trained response tokens per second in steady state; including prompts if `counts_prompts` is true."""
    counts_prompts: bool | None = None
    """Whether the trained tokens are the trainer's own count, which includes prompts. True if no file has another
    count."""
    bottleneck: str | None = None
    """The bottleneck of the run."""
    hides_samplers: bool | None = None
    """Whether the files lack the samplers' waits. In that case, `samplers` means that trainers wait for samples, either
    because samplers are slow or because both sides are in lockstep."""
    staleness_p95: int | None = None
    """95th percentile of the staleness of the trained tokens, in versions."""
    gpu_hours_per_million_tokens: float | None = None
    """GPU-hours of the whole run per million trained tokens."""
    cost_per_million_tokens: float | None = None
    """Price of these GPU-hours; None if the run has no price."""
    currency: str | None = None
    """Currency of that price."""
    alerts: int | None = None
    """Number of alerts of severity warning or critical from the built-in rules."""
    problem: str | None = None
    """Reason why the run could not be analyzed; None if it was."""

    @property
    def layout(self) -> str | None:
        """Trainer and sampler GPUs, and colocated ones if there are any: 4:12, 0:0:8."""
        if self.trainer_gpus is None:
            return None
        split = f"{self.trainer_gpus}:{self.sampler_gpus}"
        return f"{split}:{self.colocated_gpus}" if self.colocated_gpus else split


NAMES: Final = tuple(each.name for each in fields(RunEntry))
"""Names of the fields: the columns of the CSV and of the frame."""
COLUMNS: Final = (*NAMES, "layout")
"""Columns that a list can be sorted and filtered by."""
_TEXTS: Final = frozenset({"layout", *(each.name for each in fields(RunEntry) if each.type in (str, str | None))})
"""Columns of text. All others have numbers, or 1 and 0."""
_COMPARE: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
    "~": lambda held, wanted: str(wanted).lower() in str(held).lower(),
}
_FILTER: Final = re.compile(r"\s*(\w+)\s*(!=|<=|>=|=|<|>|~)\s*(.*?)\s*")


def list_entries(
    folder: Path, *, use_cache: bool, progress: Callable[[str], None], filters: Sequence[str] = ()
) -> tuple[RunEntry, ...]:
    """Return every run below a folder, ordered by path, or the folder itself if it is a run.

    filters: as in `filtered_entries`; runs excluded by filters on `path` are not analyzed.

    Raises RunFolderError if there is no run.
    """
    folder = run_folder(folder)
    if not folder.is_dir():
        found = "a file" if folder.exists() else "no such file or folder"
        raise RunFolderError.of(folder, found=found, expected="a folder of runs", next_step="Check the path.")
    runs = {os.path.relpath(run, folder): run for run in sorted(runs_below(folder))}
    if not runs:
        raise RunFolderError.of(
            folder,
            found=f"no {RUN_FILE} in it or below",
            expected="a folder with runs in it",
            next_step="A run is the folder that RLSCOPE_RUN_DIR named while it was recorded, or that "
            "`rlscope import LOG RUN_DIR` made of a log.",
        )
    on_path = [text for text in filters if text.lstrip().startswith("path")]
    wanted = filtered_entries([RunEntry(path, run.name) for path, run in runs.items()], on_path)

    def entry(place: str, path: str) -> RunEntry:
        return _entry(runs[path], path, lambda doing: progress(f"{place}, {path}: {doing}"), use_cache=use_cache)

    return tuple(entry(f"run {number} of {len(wanted)}", each.path) for number, each in enumerate(wanted, start=1))


def sorted_entries(entries: Sequence[RunEntry], column: str, *, reverse: bool) -> tuple[RunEntry, ...]:
    """Sort entries by a column, those without a value last. Raises ArgumentError if the column is unknown."""
    _check_column("sort", column)
    known = [each for each in entries if getattr(each, column) is not None]
    known.sort(key=operator.attrgetter(column), reverse=reverse)
    return (*known, *(each for each in entries if getattr(each, column) is None))


def filtered_entries(entries: Sequence[RunEntry], filters: Sequence[str]) -> tuple[RunEntry, ...]:
    """Return the entries that pass every filter: `bottleneck = samplers`, `tokens_per_s > 5000` or `path ~ monday`.

    A run without a value passes only `!=`. Raises ArgumentError if a filter is malformed, its column is unknown,
    or its value is not a number although the column has numbers.
    """
    for text in filters:
        found = _FILTER.fullmatch(text)
        if found is None:
            raise ArgumentError.of(
                f"filter {text!r}",
                found="another form",
                expected="COLUMN, one of = != < <= > >= ~, and a value: 'bottleneck = samplers'",
                next_step=f"Columns are {', '.join(COLUMNS)}.",
            )
        column, sign, wanted = found.groups()
        _check_column(f"filter {text!r}", column)
        if sign != "~" and column not in _TEXTS:
            _check_number(f"filter {text!r}", wanted)
        entries = [each for each in entries if _passes(getattr(each, column), sign, wanted)]
    return tuple(entries)


def _check_column(name: str, column: str) -> None:
    if column not in COLUMNS:
        raise ArgumentError.of(
            name,
            found=f"unknown column {column!r}",
            expected="one of " + ", ".join(COLUMNS),
            next_step="Name one.",
        )


def _check_number(name: str, wanted: str) -> None:
    try:
        float(wanted)
    except ValueError:
        raise ArgumentError.of(
            name,
            found=repr(wanted),
            expected="a number, because the column has numbers",
            next_step="For yes and no, write 1 and 0.",
        ) from None


def _passes(held: Value, sign: str, wanted: str) -> bool:
    if held is None:
        return sign == "!="
    if isinstance(held, str) or sign == "~":
        return _COMPARE[sign](str(held), wanted)
    return _COMPARE[sign](held, float(wanted))


def _entry(run: Path, path: str, progress: Callable[[str], None], *, use_cache: bool) -> RunEntry:
    if not use_cache:
        return _analyzed(run, path, progress)
    signature, kept = _signature(run), cache_folder() / f"{_digest(str(run.resolve()))}.json"
    entry = _kept_entry(kept, signature, path)
    if entry is None:
        entry = _analyzed(run, path, progress)
        _keep(kept, signature, entry)
    return entry


def cache_folder() -> Path:
    """Return the folder of cached entries; other rebuildable data is stored next to it."""
    given = os.environ.get("XDG_CACHE_HOME", "")
    base = Path(given) if os.path.isabs(given) else Path.home() / ".cache"
    return base / "rlscope" / "runs"


def _signature(run: Path) -> str:
    """Return a digest of what an entry depends on: the rlscope version, and each file's name, size and time."""
    parts = [metadata.version("rlscope"), str(_FORMAT)]
    for file in sorted(run.rglob("*")):
        if file.suffix in (".json", ".parquet"):
            with suppress(OSError):
                stat = file.stat()
                parts.append(f"{file.relative_to(run)} {stat.st_size} {stat.st_mtime_ns}")
    return _digest("\n".join(parts))


def _digest(text: str) -> str:
    return hashlib.sha256(os.fsencode(text)).hexdigest()[:32]


def _kept_entry(kept: Path, signature: str, path: str) -> RunEntry | None:
    try:
        document = json.loads(kept.read_text(encoding="utf-8"))
        if document["signature"] != signature or document["entry"].keys() != {*NAMES}:
            return None
        return load(RunEntry, json.dumps({**document["entry"], "path": path}).encode())
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def _keep(kept: Path, signature: str, entry: RunEntry) -> None:
    """Write an entry atomically, so that no reader sees half of it. Do nothing if the cache cannot be written."""
    with suppress(OSError):
        kept.parent.mkdir(parents=True, exist_ok=True)
        fresh = kept.with_suffix(f".{os.getpid()}")
        fresh.write_text(json.dumps({"signature": signature, "entry": as_dict(entry)}), encoding="utf-8")
        fresh.replace(kept)


def _analyzed(run: Path, path: str, progress: Callable[[str], None]) -> RunEntry:
    progress("opening the run")
    try:
        # Skip the queries that only the report's charts need.
        return entry_of(analyze(run, progress=progress, also_ask=()), path)
    except RlscopeError as error:
        return RunEntry(path, run.name, problem=str(error))


def entry_of(analysis: AnalysisResult, path: str) -> RunEntry:
    """Return the entry of an analyzed run."""
    run, tokens, imported = analysis.run, analysis.staleness.tokens, analysis.data_quality.imported
    framework, price = run.settings.get("framework"), run.gpu_hour_price
    hours = None
    if run.tokens_trained:
        hours = analysis.ledger.total_gpu_s / 3600.0 / (run.tokens_trained / 1e6)
    return extended(
        RunEntry,
        run,
        path=path,
        started_ns=run.started_ns if imported is None or imported.is_dated else None,
        framework=framework if isinstance(framework, str) else None,
        max_running=run.integer_setting("max_running"),
        tokens_per_s=analysis.throughput.steady_tokens_per_s,
        counts_prompts=analysis.throughput.counted_tokens is not None,
        bottleneck=analysis.verdict.bottleneck,
        hides_samplers=analysis.hides_samplers,
        staleness_p95=None if tokens is None else tokens.p95,
        gpu_hours_per_million_tokens=hours,
        cost_per_million_tokens=None if hours is None or price is None else hours * price,
        alerts=sum(at_least(each.severity, "warning") for each in analysis.alerts),
    )
