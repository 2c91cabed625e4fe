"""The front door: what `import rlscope` gives, and what the command line calls. Composes; computes nothing itself.

Each function opens the run, answers and closes it; only what `open` returns stays open. Classes wrap the frozen
dataclasses that hold the facts, and say in one line what they are. Imports stand in the functions, so that a
question or a check waits neither for the model nor for charts.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from difflib import get_close_matches
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self, TypeAlias, TypedDict, TypeVar, Unpack

from rlscope.answers import CheckReport, Comparison, PlanAnswer, RunList, WhatIfAnswer, one_line, one_of, severity_of
from rlscope.errors import AnalysisError, ArgumentError, ImpossibleChangeError, Limits, QueryError, VanishedFileError

if TYPE_CHECKING:
    import polars as pl

    from rlscope.analysis.data_quality import DataQuality
    from rlscope.analysis.result import (
        Alert,
        AnalysisResult,
        Finding,
        Ledger,
        RunFacts,
        Severity,
        Staleness,
        Throughput,
        Verdict,
    )
    from rlscope.answers import Pieces
    from rlscope.exports.perfetto import Part, PerfettoExport
    from rlscope.exports.trackers import Tracker
    from rlscope.importers.join import RunFolder
    from rlscope.importers.target import ImportOptions
    from rlscope.model.forecast.change import Change
    from rlscope.model.forecast.recommend import Recommendation
    from rlscope.model.forecast.result import ModelResult, NoModelResult
    from rlscope.reports.page.html import Charts
    from rlscope.trace.compaction import Compaction
    from rlscope.trace.query import Argument
    from rlscope.trace.store import OpenRun

_T = TypeVar("_T")
Folder: TypeAlias = str | PathLike[str]
Progress: TypeAlias = Callable[[str], None]
"""Called with what is being done, in a few words."""
PAGE_NAME: Final = "report.html"
"""Of the page, in the run's folder."""


class Changes(TypedDict, total=False):
    """What `what_if` may change; all else stays as the run was. CHANGE_LIMITS has the range of each."""

    n_train: int | None
    """Trainer GPUs; without n_sample the rest sample."""
    n_sample: int | None
    """Sampler GPUs; without n_train the rest train."""
    n_gpus: int | None
    """GPUs in total; alone: in their fastest split."""
    max_running: int | None
    """Requests that an engine may run at once."""
    max_staleness: int | None
    """Staleness cap of samples, in versions."""
    scale_lengths: float | None
    """Factor on the response lengths, up to the cap on output tokens."""
    max_output_tokens: int | None
    """Cap on the length of a response, in tokens."""
    samples_per_step: int | None
    """Samples that a training step takes."""
    trainer_speed: float | None
    """2: the trainers' passes take half as long."""
    forward_speed: float | None
    """2: the engines' passes take half as long."""
    weight_update_s: float | None
    """Seconds from the end of a step until both sides go on."""
    queue_capacity: int | None
    """Samples that the queue holds; 0: without a limit."""
    max_in_flight: int | None
    """Samples that may run and be queued at once; 0: without a limit."""
    max_in_flight_groups: int | None
    """The same limit in groups; 0: without a limit."""
    publish_every: int | None
    """Optimizer steps of one publication."""


_FACTOR: Final = Limits(0.01, 100.0)
"""A factor beyond makes a run that does not resemble the one that was recorded."""
CHANGE_LIMITS: Final[Mapping[str, Limits]] = {
    "n_train": Limits(1),
    "n_sample": Limits(1),
    "n_gpus": Limits(2, 65_536),
    "max_running": Limits(1),
    "max_staleness": Limits(0),
    "scale_lengths": _FACTOR,
    "max_output_tokens": Limits(1),
    # More samples a step take over a minute to simulate.
    "samples_per_step": Limits(1, 100_000),
    "trainer_speed": _FACTOR,
    "forward_speed": _FACTOR,
    "weight_update_s": Limits(0.0, 86_400.0),
    "queue_capacity": Limits(0),
    "max_in_flight": Limits(0),
    "max_in_flight_groups": Limits(0),
    "publish_every": Limits(1, 1_000),
}


class Run:
    """An open run, from `rlscope.open`: a context manager that answers questions and ad-hoc SQL."""

    def __init__(self, path: Folder) -> None:
        self._stack, self._folder = ExitStack(), _folder(path)
        self._run: OpenRun | None = None
        self._is_open = True
        self._path, self._run_id = self._read(lambda run: (run.folder, run.run_id))

    @property
    def path(self) -> Path:
        """The run's folder, absolute."""
        return self._path

    @property
    def run_id(self) -> str:
        """The run's name, from its run.json."""
        return self._run_id

    def query(self, name: str, **arguments: "Argument") -> "pl.DataFrame":
        """The answer to a question of `rlscope queries`; units are in the column names, its header explains each.

        arguments replace the standard ones, which cover the whole run. Raises QueryError for a question or an argument
        that does not exist, UnreadableDataError for a damaged file.
        """
        from rlscope.trace.adhoc import answer

        return self._read(lambda run: answer(run, name, arguments))

    def sql(self, text: str, *, time_s: float = 60.0, memory_mb: int = 1000) -> "pl.DataFrame":
        """The answer to one SELECT of your own over the run's tables, on a connection that can open no file.

        time_s, memory_mb: how long it may run and how much memory it may take. Raises QueryError for anything but one
        SELECT, for SQL that is refused, and for one that passes a limit.
        """
        from rlscope.trace.execution import SqlLimits
        from rlscope.trace.query import ask_own

        return self._read(lambda run: ask_own(run, text, SqlLimits(time_s, memory_mb)))

    def close(self) -> None:
        """Close the connection; leaving the `with` block does."""
        self._is_open = False
        self._stack.close()

    def _read(self, use: "Callable[[OpenRun], _T]") -> "_T":
        """Return what is made of the open run, which is opened again if a file of it vanishes."""
        from rlscope.trace.store import MOST_READS, open_run

        if not self._is_open:
            raise QueryError.of(
                f"run {self.run_id}", found="a closed run", expected="an open one", next_step="Ask in its `with` block."
            )
        left = MOST_READS
        while True:
            try:
                self._run = self._run or self._stack.enter_context(open_run(self._folder.path))
                return use(self._run)
            except VanishedFileError:
                self._stack.close()
                self._run, left = None, left - 1
                if not left:
                    raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return one_line("Run", self.run_id, str(self.path) + ("" if self._is_open else " (closed)"))


class Analysis:
    """The analysis of one run, from `rlscope.analyze`: its facts, its charts, and the formats it is written in.

    Numbers have their unit in their name; None means that there is no data. `query`, `sql` and `what_if` answer further
    questions of the same run.
    """

    def __init__(self, path: Folder, result: "AnalysisResult", folder: "RunFolder | None" = None) -> None:
        self._path = Path(path)
        self._folder = folder or _folder(path)
        self._charts: Charts | None = None
        self.result: AnalysisResult = result
        """Everything that was computed, as one frozen dataclass."""

    @property
    def path(self) -> Path:
        """The run's folder, or the file that was imported, as it was given."""
        return self._path

    @property
    def page_path(self) -> Path:
        """Where the page goes unless another path is given."""
        return self._folder.beside(PAGE_NAME)

    @property
    def run(self) -> "RunFacts":
        """Who ran, how long (s), and how much came of it."""
        return self.result.run

    @property
    def verdict(self) -> "Verdict":
        """What limits the run, and the GPU-seconds lost to each cause."""
        return self.result.verdict

    @property
    def model(self) -> "ModelResult | NoModelResult":
        """The model fitted to the run; or, with its `reason`, that there is none."""
        return self.result.model

    @property
    def recommendation(self) -> "Recommendation | None":
        """The recommended layout, its gain as a ratio, and how sure that is; None where the run has no model."""
        from rlscope.model.forecast.result import NoModelResult

        return None if isinstance(self.model, NoModelResult) else self.model.recommendation

    @property
    def ledger(self) -> "Ledger":
        """Every GPU-second of every worker, in exactly one state."""
        return self.result.ledger

    @property
    def staleness(self) -> "Staleness":
        """How stale the tokens and samples were when they were trained on, in versions."""
        return self.result.staleness

    @property
    def throughput(self) -> "Throughput":
        """Trained and generated response tokens per second."""
        return self.result.throughput

    @property
    def findings(self) -> "tuple[Finding, ...]":
        """What is wrong with the run, the most expensive first."""
        return self.result.findings

    @property
    def alerts(self) -> "tuple[Alert, ...]":
        """The stretches in which a built-in alert rule fired, by their start."""
        return self.result.alerts

    @property
    def data_quality(self) -> "DataQuality":
        """What is missing from the trace."""
        return self.result.data_quality

    @property
    def charts(self) -> "Charts":
        """The charts of the page: `charts.ledger()` is an Altair chart; `dir(charts)` lists them."""
        from rlscope.reports.page.html import Charts

        self._charts = self._charts or Charts(self.with_drawn())
        return self._charts

    def query(self, name: str, **arguments: "Argument") -> "pl.DataFrame":
        """The answer to a question, as `Run.query` gives it; the run's folder is opened for it."""
        with Run(self._folder.path) as run:
            return run.query(name, **arguments)

    def sql(self, text: str) -> "pl.DataFrame":
        """The answer to one SELECT of your own, as `Run.sql` gives it; the run's folder is opened for it."""
        with Run(self._folder.path) as run:
            return run.sql(text)

    def what_if(self, **changes: Unpack[Changes]) -> "WhatIfAnswer":
        """What the run would do with something changed: `a.what_if(n_train=4, max_running=64)`; see `rlscope.what_if`.

        Raises AnalysisError for a run that the model cannot be fitted to or does not reproduce, and
        ImpossibleChangeError.
        """
        from rlscope.model.forecast.result import NoModelResult
        from rlscope.model.forecast.what_if import what_if

        change = _change(changes)
        if isinstance(self.model, NoModelResult):
            raise AnalysisError.of(
                self.path,
                found=self.model.reason,
                expected="a run that the model can be fitted to",
                next_step="`rlscope analyze` shows what the trace does say.",
            )
        if not self.model.replay.explains:
            from rlscope.reports.text.model import misfit_words

            raise AnalysisError.of(
                self.path,
                found=f"a model that does not reproduce the run: {misfit_words(self.model.replay)}",
                expected="a replayed rate within 10%, without which no prediction is given",
                next_step="The report of `rlscope analyze` lists what is off.",
            )
        return WhatIfAnswer(self.run.run_id, self.model, what_if(self.model, change))

    def to_json(self) -> str:
        """The whole analysis as JSON, the document of `rlscope analyze --json`."""
        from rlscope.reports.documents.analysis import analysis_document

        return analysis_document(self.result).as_json()

    def to_markdown(self) -> str:
        """The first screen of the page as Markdown, for a pull request or a chat."""
        from rlscope.reports.markdown import as_markdown

        return as_markdown(self.result)

    def to_html(self, path: Folder) -> Path:
        """Write the report, one file that loads nothing, and return its path. Raises OutputError."""
        from rlscope.reports.page.html import render
        from rlscope.text_out import write_file

        return write_file(Path(path), render(self.with_drawn()).encode())

    def to_png(self, path: Folder) -> Path:
        """Write the first screen, 2560 x 1440 pixels, and return its path. Raises OutputError, or RlscopeError."""
        from rlscope.reports.page.png import as_png
        from rlscope.text_out import write_file

        return write_file(Path(path), as_png(self.result))

    def with_drawn(self) -> "AnalysisResult":
        """The result with all that the page draws; what an analysis with `page=False` left is asked now."""
        from rlscope.pipeline import with_drawn

        self.result = with_drawn(self._folder.path, self.result)
        return self.result

    def __repr__(self) -> str:
        from rlscope.reports.text.verdict import headline

        return one_line("Analysis", self.run.run_id, headline(self.result))

    def _repr_html_(self) -> str:
        from rlscope.reports.page.html import card

        return card(self.result)


def open(path: Folder) -> Run:
    """Open the run in a folder to ask questions of it in a `with` block. Raises RunFolderError, UnreadableDataError."""
    return Run(path)


def analyze(
    path: Folder,
    max_staleness: int | None = None,
    gpus_per_node: int = 1,
    also: Folder | Sequence[Folder] = (),
    progress: Progress | None = None,
    options: "ImportOptions | None" = None,
    ray: str | None = None,
    page: bool = True,
) -> Analysis:
    """Analyse the run in a folder, or a run that a framework's log or metrics file shows.

    max_staleness: cap on the staleness of samples (p95, in versions) in a recommended layout; None: the run's own.
    gpus_per_node: above 1, only whole nodes are moved between trainers and samplers. also: folders of other runs of the
    same model with another number of trainer GPUs, which say how training scales. progress: called with what is being
    done. options: of such a file, what it does not say itself. ray: the address of a Ray cluster that answers in shares
    of the run. page: False asks what only the page draws when it is needed. Raises RunFolderError, ImportFileError for
    a file that no importer knows, AnalysisError for one of `also` that cannot be compared, and ArgumentError.
    """
    from rlscope import pipeline
    from rlscope.analysis.result import Constraints
    from rlscope.cluster import on_ray

    if max_staleness is not None:
        Limits(0).check("max_staleness", max_staleness)
    Limits(1).check("gpus_per_node", gpus_per_node)
    constraints = Constraints(max_staleness, gpus_per_node, tuple(Path(each) for each in _several(also)))
    folder, say = _folder(path, options, progress), progress or pipeline.say_nothing
    drawn, divide = pipeline.DRAWN if page else (), on_ray(ray, say)
    result = pipeline.analyze(folder.path, progress=say, constraints=constraints, divide=divide, also_ask=drawn)
    return Analysis(path, result, folder)


def what_if(
    run: Folder | Analysis,
    *,
    also: Folder | Sequence[Folder] = (),
    progress: Progress | None = None,
    **changes: Unpack[Changes],
) -> WhatIfAnswer:
    """What a run would do with something changed: `what_if("runs/monday", n_train=4, max_running=64)`.

    run: its folder, or its analysis, which saves analysing it again. The changes and their units are in `Changes`; also
    and progress are those of `analyze`. Raises what `analyze` does, AnalysisError for a run that the model cannot be
    fitted to or does not reproduce, and ImpossibleChangeError for a value out of range, GPUs that make no layout or a
    limit given twice.
    """
    if not isinstance(run, Analysis):
        return analyze(run, also=also, progress=progress, page=False).what_if(**changes)
    if _several(also):
        raise ArgumentError.of(
            "what_if", found="`also` beside an analysis", expected="a folder with it", next_step="Give it to `analyze`."
        )
    return run.what_if(**changes)


def plan(
    path: Folder, max_staleness: int | None = None, *, layout: str | None = None, running: int | None = None
) -> PlanAnswer:
    """The layout to start a run with, from a plan in TOML; `rlscope plan --example` prints one.

    max_staleness: cap on the staleness of samples, in versions; None: the plan's own. layout: one to forecast beside
    the recommended one, as "16:48" trainer and sampler GPUs; running: requests that each engine may run, None: as many
    as suit it. Raises RlscopeError for a plan that cannot be read, with the key, and ArgumentError.
    """
    from rlscope.planning.build import plan_ahead

    if max_staleness is not None:
        Limits(0).check("max_staleness", max_staleness)
    if running is not None:
        Limits(1).check("running", running)
    return PlanAnswer(*plan_ahead(Path(path), max_staleness, layout, running))


def check(
    path: Folder,
    rules: Folder | None = None,
    fail_if: str | Sequence[str] = (),
    fail_on_finding: "Severity | None" = None,
    baseline: Folder | None = None,
    ray: str | None = None,
) -> CheckReport:
    """Evaluate alert rules over the whole run in a folder.

    rules: a file of rules; None: the built-in rules. fail_if: further critical rules over the whole run,
    each as `staleness.tokens.p95 > 4`; without `rules` they replace the built-in ones. fail_on_finding: fail on a
    finding of that severity or higher; None: look for none. baseline: a run, or the JSON document of an analysis, to
    compare with; the built-in regression rules then apply too, or those of `fail_if` that name it, as
    `throughput.steady_tokens_per_s < 0.95 * baseline`. ray: that of `analyze`; not for the baseline. Raises
    RunFolderError, RuleError for rules that cannot be used, AnalysisError for an unreadable document, ArgumentError.
    """
    from rlscope import pipeline
    from rlscope.cluster import on_ray

    one_offs = (fail_if,) if isinstance(fail_if, str) else tuple(fail_if)
    severity = fail_on_finding and severity_of(fail_on_finding, "fail_on_finding")
    file, divide = None if rules is None else Path(rules), on_ray(ray, pipeline.say_nothing)
    folder = _folder(path)
    if baseline is not None:
        from rlscope.comparison.gate import check_against
        from rlscope.importers.join import RunFolder
        from rlscope.trace.files import RUN_FILE

        document = Path(baseline)
        is_document = document.is_file() and document.suffix == ".json" and document.name != RUN_FILE
        before = RunFolder(document) if is_document else _folder(document)
        return CheckReport(check_against(folder.path, before.path, file, one_offs, severity, divide))
    chosen = pipeline.rules_to_check(file, one_offs)
    return CheckReport(pipeline.check(folder.path, chosen, severity, divide))


def doctor(path: Folder, progress: Progress | None = None, options: "ImportOptions | None" = None) -> "Pieces":
    """What is there of a run, what each missing piece would add, and what exactly brings it; see `rlscope doctor`.

    progress and options are those of `analyze`. Raises RunFolderError for a folder that is not a run, ImportFileError.
    """
    from rlscope.analysis.checkup import examine
    from rlscope.answers import Pieces
    from rlscope.pipeline import read_run
    from rlscope.reports.text.doctor import pieces

    # Held by its name: the folder of an imported run goes with the last reference to it.
    folder = _folder(path, options, progress)
    return Pieces(pieces(read_run(folder.path, examine)))


def compare(baseline: "Folder | Analysis", *runs: "Folder | Analysis", progress: Progress | None = None) -> Comparison:
    """Compare runs with a baseline: `compare("runs/before", "runs/after")`.

    Each is the folder of a run, a log or metrics file that can be imported, or its analysis. progress: called with what
    is being done. Raises RunFolderError, ImportFileError, and AnalysisError with nothing to compare.
    """
    from rlscope.comparison.runs import compare_runs, read_runs
    from rlscope.pipeline import say_nothing

    opened = [each if isinstance(each, Analysis) else _folder(each, say=progress) for each in (baseline, *runs)]
    given = [each.with_drawn() if isinstance(each, Analysis) else each.path for each in opened]
    paths = [each.path if isinstance(each, Analysis) else Path(each) for each in (baseline, *runs)]
    first, *others = read_runs(given, progress or say_nothing, paths)
    return Comparison(compare_runs(first, others))


def list_runs(
    folder: Folder,
    *,
    sort: str = "date",
    reverse: bool = False,
    filters: Sequence[str] = (),
    cache: bool = True,
    progress: Progress | None = None,
) -> RunList:
    """The runs in a folder and below it, one entry each.

    sort: a column, such as "tokens_per_s"; reverse: the largest first. filters: such as "bottleneck = samplers"; a run
    must pass all. cache: keep what was found in the user's cache folder while the run's files are the same. progress:
    called with what is being done. Raises RunFolderError for a folder without runs, and ArgumentError.
    """
    from rlscope.comparison.history import filtered_entries, list_entries, sorted_entries
    from rlscope.pipeline import say_nothing

    # What cannot be asked is refused before hours of analysis.
    sorted_entries(filtered_entries((), filters), sort, reverse=reverse)
    entries = list_entries(Path(folder), use_cache=cache, progress=progress or say_nothing, filters=filters)
    return RunList(str(folder), sorted_entries(filtered_entries(entries, filters), sort, reverse=reverse))


def export_perfetto(path: Folder, output: Folder, **part: "Unpack[Part]") -> "PerfettoExport":
    """Write the timeline of the run in a folder as a Perfetto trace; `Part` says what of it. Raises RlscopeError."""
    from rlscope.exports import perfetto

    folder = _folder(path)
    return perfetto.export_perfetto(folder.path, Path(output), **part)


def compact(
    path: Folder,
    out: Folder | None = None,
    *,
    verify: bool = False,
    progress: Progress | None = None,
) -> "Compaction":
    """Merge the many small files of a run into a few large ones, in place or into a new folder; answers stay the same.

    verify: compare the rows of each new file before anything is removed. Raises RlscopeError.
    """
    from rlscope.trace.compaction import compact_run, say_nothing

    return compact_run(Path(path), None if out is None else Path(out), verify=verify, say=progress or say_nothing)


def push(
    path: Folder,
    tracker: "Tracker",
    *,
    project: str | None = None,
    into: str | None = None,
    folder: Folder | None = None,
    also: Folder | Sequence[Folder] = (),
    progress: Progress | None = None,
) -> str:
    """Analyse the run in a folder and write the results into a tracker of experiments; returns where.

    tracker: wandb, mlflow or tensorboard. project, into: its project or experiment, and the id of its run to add to.
    folder: the log folder of TensorBoard, which needs one. Raises what `analyze` does, ArgumentError, and RlscopeError.
    """
    from rlscope.exports.trackers import TRACKERS, Target, library_of, push_analysis

    target = Target(one_of("tracker", tracker, TRACKERS), project, into, None if folder is None else Path(folder))
    library_of(target.tracker)  # An analysis takes a while.
    return push_analysis(analyze(path, also=also, progress=progress).result, target)


def _folder(path: Folder, options: "ImportOptions | None" = None, say: Progress | None = None) -> "RunFolder":
    from rlscope.importers.join import resolve

    return resolve(Path(path), options, say)


def _change(changes: Changes) -> "Change":
    """The changes in the model's words. Raises TypeError for a name that is none, ImpossibleChangeError."""
    from rlscope.model.forecast.change import Change

    given: dict[str, object] = {**changes}
    for name, value in given.items():
        if name not in CHANGE_LIMITS:
            near = get_close_matches(name, CHANGE_LIMITS, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"it takes {', '.join(CHANGE_LIMITS)}"
            raise TypeError(f"what_if() got an unexpected keyword argument {name!r}; {hint}")
        if value is not None:
            CHANGE_LIMITS[name].check(name, value, ImpossibleChangeError)
    return Change.of_options(given)


def _several(paths: Folder | Sequence[Folder]) -> Sequence[Folder]:
    """One folder alone is a sequence of one."""
    return (paths,) if isinstance(paths, str | PathLike) else paths
