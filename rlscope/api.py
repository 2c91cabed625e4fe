"""The Python interface: the names that `import rlscope` offers and that the command line calls.

This module only composes: every number is computed elsewhere. Each function opens the run, answers and closes it again;
only a `Run` from `open` stays open. Results are classes around frozen dataclasses, with a `repr` of one line. Imports
are inside the functions, so that a query or a check waits for neither the model nor the charts.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from difflib import get_close_matches
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias, TypedDict, TypeVar, Unpack

from rlscope.answers import CheckReport, Comparison, PlanAnswer, RunList, WhatIfAnswer, one_line, one_of, severity_of
from rlscope.errors import AnalysisError, ArgumentError, Bounds, ImpossibleChangeError, QueryError, VanishedFileError

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
    from rlscope.answers import DoctorReport
    from rlscope.exports.perfetto import PerfettoExport, PerfettoOptions
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
"""Function that is called with a few words on the current activity, for a progress display."""
PAGE_NAME: Final = "report.html"
"""Default file name of the report, in the run's folder."""


class Changes(TypedDict, total=False):
    """Settings that `what_if` can change. All others keep the run's values. CHANGE_LIMITS has the range of each."""

    trainer_gpus: int | None
    """Trainer GPUs. Without sampler_gpus, the remaining GPUs sample."""
    sampler_gpus: int | None
    """Sampler GPUs. Without trainer_gpus, the remaining GPUs train."""
    total_gpus: int | None
    """Total GPUs. Given alone, they are split in the fastest way."""
    max_running: int | None
    """Maximum running requests per engine."""
    max_staleness: int | None
    """Staleness cap of samples, in versions."""
    length_factor: float | None
    """Factor on the response lengths, which stay below the cap on output tokens."""
    max_output_tokens: int | None
    """Maximum response length, in tokens."""
    samples_per_step: int | None
    """Samples per training step."""
    trainer_speed: float | None
    """Relative speed of the trainers: with 2, their passes take half as long."""
    engine_speed: float | None
    """Relative speed of the engines: with 2, their passes take half as long."""
    weight_update_s: float | None
    """Seconds from the end of a step until both sides continue."""
    queue_capacity_samples: int | None
    """Queue capacity, in samples; 0 means no limit."""
    max_in_flight_samples: int | None
    """Maximum samples in flight, running or queued; 0 means no limit."""
    max_in_flight_groups: int | None
    """Maximum groups in flight, running or queued; 0 means no limit."""
    publish_every: int | None
    """Optimizer steps per weight update."""


_FACTOR: Final = Bounds(0.01, 100.0)
"""Range of a factor. Beyond it, the changed run no longer resembles the recorded one."""
CHANGE_LIMITS: Final[Mapping[str, Bounds]] = {
    "trainer_gpus": Bounds(1),
    "sampler_gpus": Bounds(1),
    "total_gpus": Bounds(2, 65_536),
    "max_running": Bounds(1),
    "max_staleness": Bounds(0),
    "length_factor": _FACTOR,
    "max_output_tokens": Bounds(1),
    # Larger steps take over a minute to simulate.
    "samples_per_step": Bounds(1, 100_000),
    "trainer_speed": _FACTOR,
    "engine_speed": _FACTOR,
    "weight_update_s": Bounds(0.0, 86_400.0),
    "queue_capacity_samples": Bounds(0),
    "max_in_flight_samples": Bounds(0),
    "max_in_flight_groups": Bounds(0),
    "publish_every": Bounds(1, 1_000),
}


class Run:
    """An open run, returned by `rlscope.open`. It is a context manager that runs built-in queries and ad-hoc SQL."""

    def __init__(self, path: Folder) -> None:
        self._stack, self._folder = ExitStack(), _folder(path)
        self._run: OpenRun | None = None
        self._is_open = True
        self._path, self._run_id = self._read(lambda run: (run.folder, run.run_id))

    @property
    def path(self) -> Path:
        """Absolute path of the run's folder."""
        return self._path

    @property
    def run_id(self) -> str:
        """Id of the run, from its run.json."""
        return self._run_id

    def query(self, name: str, **arguments: "Argument") -> "pl.DataFrame":
        """Run a built-in query; `rlscope queries` lists them.

        Args:
            name: Name of the query.
            **arguments: Arguments of the query. The defaults cover the whole run.

        Returns:
            The rows. Column names carry their unit, and the header of the query's SQL file explains each column.

        Raises:
            QueryError: The query, or one of its arguments, does not exist.
            UnreadableDataError: A file of the run is damaged.
        """
        from rlscope.trace.adhoc import answer

        return self._read(lambda run: answer(run, name, arguments))

    def sql(self, text: str, *, time_s: float = 60.0, memory_mb: int = 1000) -> "pl.DataFrame":
        """Run one SELECT over the run's tables, on a connection that cannot open files.

        Args:
            text: One SELECT statement.
            time_s: Time limit, in seconds.
            memory_mb: Memory limit, in MB.

        Raises:
            QueryError: The text is not exactly one SELECT, DuckDB rejects it, or it exceeds a limit.
        """
        from rlscope.trace.execution import SqlLimits
        from rlscope.trace.query import ask_own

        return self._read(lambda run: ask_own(run, text, SqlLimits(time_s, memory_mb)))

    def close(self) -> None:
        """Close the connection. Leaving the `with` block does this too."""
        self._is_open = False
        self._stack.close()

    def _read(self, use: "Callable[[OpenRun], _T]") -> "_T":
        """Return `use(run)`. The run is opened again if one of its files vanishes meanwhile."""
        from rlscope.trace.store import MOST_READS, open_run

        if not self._is_open:
            raise QueryError.of(
                f"run {self.run_id}",
                found="a closed run",
                expected="an open run",
                next_step="Query it inside its `with` block.",
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
    """The analysis of one run, returned by `rlscope.analyze`: results, charts and output formats.

    Numbers carry their unit in their name; None means no data. `query`, `sql` and `what_if` answer further questions
    about the same run.
    """

    def __init__(self, path: Folder, result: "AnalysisResult", folder: "RunFolder | None" = None) -> None:
        self._path = Path(path)
        self._folder = folder or _folder(path)
        self._charts: Charts | None = None
        self.result: AnalysisResult = result
        """The complete result, as one frozen dataclass."""

    @property
    def path(self) -> Path:
        """Path of the run folder or of the imported file, as the caller gave it."""
        return self._path

    @property
    def page_path(self) -> Path:
        """Default path of the report."""
        return self._folder.beside(PAGE_NAME)

    @property
    def run(self) -> "RunFacts":
        """Workers, duration (s) and output of the run."""
        return self.result.run

    @property
    def verdict(self) -> "Verdict":
        """The bottleneck of the run, and the GPU-seconds lost to each cause."""
        return self.result.verdict

    @property
    def model(self) -> "ModelResult | NoModelResult":
        """The model fitted to the run, or a NoModelResult whose `reason` says why none could be fitted."""
        return self.result.model

    @property
    def recommendation(self) -> "Recommendation | None":
        """The recommended layout with its gain (a ratio) and its probability. None if the run has no model."""
        from rlscope.model.forecast.result import NoModelResult

        return None if isinstance(self.model, NoModelResult) else self.model.recommendation

    @property
    def ledger(self) -> "Ledger":
        """GPU-seconds of every worker by state. Each GPU-second is in exactly one state."""
        return self.result.ledger

    @property
    def staleness(self) -> "Staleness":
        """Staleness of tokens and samples at the time of training, in versions."""
        return self.result.staleness

    @property
    def throughput(self) -> "Throughput":
        """Trained and generated response tokens per second."""
        return self.result.throughput

    @property
    def findings(self) -> "tuple[Finding, ...]":
        """Problems of the run, the most expensive first."""
        return self.result.findings

    @property
    def alerts(self) -> "tuple[Alert, ...]":
        """Intervals in which a built-in alert rule fired, in the order of their start."""
        return self.result.alerts

    @property
    def data_quality(self) -> "DataQuality":
        """Gaps and faults of the trace."""
        return self.result.data_quality

    @property
    def charts(self) -> "Charts":
        """Charts of the report: `charts.ledger()` returns an Altair chart, `dir(charts)` lists all of them."""
        from rlscope.reports.page.html import Charts

        self._charts = self._charts or Charts(self.with_drawn())
        return self._charts

    def query(self, name: str, **arguments: "Argument") -> "pl.DataFrame":
        """Run a built-in query, as `Run.query` does. The run is opened for it and closed again."""
        with Run(self._folder.path) as run:
            return run.query(name, **arguments)

    def sql(self, text: str) -> "pl.DataFrame":
        """Run one SELECT, as `Run.sql` does with its default limits. The run is opened for it and closed again."""
        with Run(self._folder.path) as run:
            return run.sql(text)

    def what_if(self, **changes: Unpack[Changes]) -> "WhatIfAnswer":
        """Predict the run with changed settings: `a.what_if(trainer_gpus=4, max_running=64)`; see `rlscope.what_if`.

        Args:
            **changes: New values, by the names and in the units of `Changes`.

        Raises:
            AnalysisError: No model can be fitted to the run, or the model does not reproduce it.
            ImpossibleChangeError: A value is out of range, the GPUs form no layout, or a limit is given twice.
        """
        from rlscope.model.forecast.result import NoModelResult
        from rlscope.model.forecast.what_if import what_if

        change = _change(changes)
        if isinstance(self.model, NoModelResult):
            raise AnalysisError.of(
                self.path,
                found=self.model.reason,
                expected="a run that the model can be fitted to",
                next_step="Run `rlscope analyze` for the results that need no model.",
            )
        if not self.model.replay.explains:
            from rlscope.reports.text.model import misfit_words

            raise AnalysisError.of(
                self.path,
                found=f"a model that does not reproduce the run: {misfit_words(self.model.replay)}",
                expected="a replayed rate within 10% of the measured one",
                next_step="Run `rlscope analyze`: its report lists the differences.",
            )
        return WhatIfAnswer(self.run.run_id, self.model, what_if(self.model, change))

    def to_json(self) -> str:
        """Return the analysis as JSON, the document of `rlscope analyze --json`."""
        from rlscope.document import dump
        from rlscope.reports.documents.analysis import analysis_document

        return dump(analysis_document(self.result))

    def to_markdown(self) -> str:
        """Return the card as Markdown, for a pull request or a chat."""
        from rlscope.reports.markdown import as_markdown

        return as_markdown(self.result)

    def to_html(self, path: Folder) -> Path:
        """Write the report as one self-contained HTML file and return its path.

        Raises:
            OutputError: The file cannot be written.
        """
        from rlscope.reports.page.html import render
        from rlscope.text_out import write_file

        return write_file(Path(path), render(self.with_drawn()).encode())

    def to_png(self, path: Folder) -> Path:
        """Write the card as a PNG of 2560 x 1440 pixels and return its path.

        Raises:
            OutputError: The file cannot be written.
            RlscopeError: No font is installed.
        """
        from rlscope.reports.page.png import as_png
        from rlscope.text_out import write_file

        return write_file(Path(path), as_png(self.result))

    def with_drawn(self) -> "AnalysisResult":
        """Return the result with all data that the report draws. An analysis with `page=False` queries the rest now."""
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
    """Open a run for queries, in a `with` block.

    Args:
        path: Run folder, or a log or metrics file of a framework.

    Raises:
        RunFolderError: The folder is not a run, or this version cannot read it.
        ImportFileError: No importer can read the file.
        UnreadableDataError: A file of the run is damaged.
    """
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
    """Analyze a run: where its GPU time went, how stale its tokens were, and which layout would be faster.

    Args:
        path: Run folder, or a log or metrics file of a framework.
        max_staleness: Maximum sample staleness (p95, in versions) of a recommended layout. None uses the run's cap.
        gpus_per_node: If above 1, a recommended layout moves only whole nodes between trainers and samplers.
        also: Folders of other runs of the same model with different numbers of trainer GPUs. They show how training
            scales.
        progress: Called with a few words on the current activity.
        options: Facts that a log or metrics file does not contain, such as its framework or the number of GPUs.
        ray: Address of a Ray cluster that shares the work, or "auto". None uses this process only.
        page: If False, data that only the report draws is queried when it is first needed.

    Raises:
        RunFolderError: The folder is not a run, or this version cannot read it.
        ImportFileError: No importer can read the file, or several could.
        AnalysisError: The run cannot be analyzed, or a run of `also` cannot be compared with it.
        ArgumentError: An argument is out of range.
    """
    from rlscope import pipeline
    from rlscope.analysis.result import Constraints
    from rlscope.cluster import on_ray

    if max_staleness is not None:
        Bounds(0).check("max_staleness", max_staleness)
    Bounds(1).check("gpus_per_node", gpus_per_node)
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
    """Predict a run with changed settings: `what_if("runs/monday", trainer_gpus=4, max_running=64)`.

    Args:
        run: Run folder, log or metrics file. Pass an `Analysis` to avoid analyzing the run again.
        also: Folders of other runs, as in `analyze`. Not allowed with an `Analysis`.
        progress: Called with a few words on the current activity.
        **changes: New values, by the names and in the units of `Changes`.

    Raises:
        AnalysisError: No model can be fitted to the run, or the model does not reproduce it.
        ImpossibleChangeError: A value is out of range, the GPUs form no layout, or a limit is given twice.
        RlscopeError: Any error that `analyze` raises.
    """
    if not isinstance(run, Analysis):
        return analyze(run, also=also, progress=progress, page=False).what_if(**changes)
    if _several(also):
        raise ArgumentError.of(
            "what_if",
            found="`also` together with an Analysis",
            expected="`also` only with a run folder",
            next_step="Pass `also` to `analyze`.",
        )
    return run.what_if(**changes)


def plan(
    path: Folder, max_staleness: int | None = None, *, layout: str | None = None, running: int | None = None
) -> PlanAnswer:
    """Recommend a layout for a planned run.

    Args:
        path: Plan in TOML; `rlscope plan --example` prints one.
        max_staleness: Staleness cap of samples, in versions. None uses the plan's cap.
        layout: Another layout to forecast, as trainer and sampler GPUs: "16:48".
        running: Maximum running requests per engine of `layout`. None uses the best value.

    Raises:
        RlscopeError: The plan cannot be read. The message names the key.
        ArgumentError: An argument is out of range, or the layout does not fit the plan.
    """
    from rlscope.planning.build import plan_ahead

    if max_staleness is not None:
        Bounds(0).check("max_staleness", max_staleness)
    if running is not None:
        Bounds(1).check("running", running)
    return PlanAnswer(*plan_ahead(Path(path), max_staleness, layout, running))


def check(
    path: Folder,
    rules: Folder | None = None,
    fail_if: str | Sequence[str] = (),
    fail_on_finding: "Severity | None" = None,
    baseline: Folder | None = None,
    ray: str | None = None,
) -> CheckReport:
    """Evaluate alert rules over a whole run.

    Args:
        path: Run folder, or a log or metrics file of a framework.
        rules: TOML file of rules. None uses the built-in rules.
        fail_if: Critical rules over the whole run, such as "staleness.tokens.p95 > 4". Without `rules`, they replace
            the built-in rules.
        fail_on_finding: Also fail on a finding of this severity or higher. None does not look for findings.
        baseline: Run, or JSON document of an analysis, to compare with. It adds the built-in regression rules, unless
            rules of `fail_if` name it, as in "throughput.steady_tokens_per_s < 0.95 * baseline".
        ray: Address of a Ray cluster, as in `analyze`. The baseline is always read in this process.

    Raises:
        RunFolderError: A folder is not a run, or this version cannot read it.
        ImportFileError: No importer can read a file.
        RuleError: A rule cannot be used.
        AnalysisError: The JSON document of the baseline cannot be read.
        ArgumentError: An argument is out of range.
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


def doctor(path: Folder, progress: Progress | None = None, options: "ImportOptions | None" = None) -> "DoctorReport":
    """Check what a run records, what it lacks, and how to add that, as `rlscope doctor` does.

    Args:
        path: Run folder, or a log or metrics file of a framework.
        progress: Called with a few words on the current activity.
        options: Facts that a log or metrics file does not contain, as in `analyze`.

    Raises:
        RunFolderError: The folder is not a run, or this version cannot read it.
        ImportFileError: No importer can read the file, or several could.
    """
    from rlscope.analysis.checkup import examine
    from rlscope.answers import DoctorReport
    from rlscope.pipeline import read_run
    from rlscope.reports.text.doctor import checks

    # Keep a reference: the temporary folder of an imported run is removed with the last one.
    folder = _folder(path, options, progress)
    return DoctorReport(checks(read_run(folder.path, examine)))


def compare(baseline: "Folder | Analysis", *runs: "Folder | Analysis", progress: Progress | None = None) -> Comparison:
    """Compare runs with a baseline: `compare("runs/before", "runs/after")`.

    Args:
        baseline: Run folder, log or metrics file, or an `Analysis`.
        *runs: Runs to compare with the baseline, in any of these forms.
        progress: Called with a few words on the current activity.

    Raises:
        RunFolderError: A folder is not a run, or this version cannot read it.
        ImportFileError: No importer can read a file, or several could.
        AnalysisError: There is nothing to compare.
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
    """List the runs in a folder, at any depth.

    Args:
        folder: Folder to search.
        sort: Column to sort by, such as "tokens_per_s".
        reverse: If True, sort in descending order.
        filters: Conditions such as "bottleneck = samplers". A run must meet all of them.
        cache: If True, keep results in the user's cache folder and reuse them while the run's files do not change.
        progress: Called with a few words on the current activity.

    Raises:
        RunFolderError: The folder contains no run.
        ArgumentError: A column or a filter is not valid.
    """
    from rlscope.comparison.history import filtered_entries, list_entries, sorted_entries
    from rlscope.pipeline import say_nothing

    # Reject an invalid column or filter before hours of analysis.
    sorted_entries(filtered_entries((), filters), sort, reverse=reverse)
    entries = list_entries(Path(folder), use_cache=cache, progress=progress or say_nothing, filters=filters)
    return RunList(str(folder), sorted_entries(filtered_entries(entries, filters), sort, reverse=reverse))


def export_perfetto(path: Folder, output: Folder, **part: "Unpack[PerfettoOptions]") -> "PerfettoExport":
    """Write the timeline of a run as a Perfetto trace.

    Args:
        path: Run folder, or a log or metrics file of a framework.
        output: Trace file to write.
        **part: Part of the run to write: `from_s`, `to_s`, `workers`, `max_mb`; see
            `rlscope.exports.perfetto.PerfettoOptions`.

    Raises:
        RunFolderError: The folder is not a run, or this version cannot read it.
        ArgumentError: The run has no such interval or worker.
        OutputError: The file cannot be written.
        RlscopeError: The package `perfetto` is not installed.
    """
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
    """Merge the many small files of a run into a few large ones. Results do not change.

    Args:
        path: Run folder.
        out: New folder for the compacted run. None compacts in place.
        verify: If True, compare the rows of each new file with the originals before removing them.
        progress: Called with a few words on the current activity.

    Raises:
        RunFolderError: The folder is not a run.
        ArgumentError: `out` is an address in an object store.
        OutputError: The new folder is not empty or cannot be written.
        UnreadableDataError: The rows of a new file differ from the originals.
        RlscopeError: Another compaction works on the run.
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
    """Analyze a run and write the results to an experiment tracker.

    Args:
        path: Run folder, or a log or metrics file of a framework.
        tracker: "wandb", "mlflow" or "tensorboard".
        project: Weights & Biases project or MLflow experiment. None uses the tracker's environment.
        into: Id of an existing tracker run to add to. None creates a new run.
        folder: Log folder; required for TensorBoard.
        also: Folders of other runs, as in `analyze`.
        progress: Called with a few words on the current activity.

    Returns:
        Where the results are, in words and without credentials.

    Raises:
        ArgumentError: The tracker is unknown, or TensorBoard has no folder.
        RlscopeError: The tracker's library is not installed or rejects the data, or `analyze` fails.
    """
    from rlscope.exports.trackers import TRACKERS, Target, library_of, push_analysis

    target = Target(one_of("tracker", tracker, TRACKERS), project, into, None if folder is None else Path(folder))
    library_of(target.tracker)  # Fail before the analysis, which takes a while.
    return push_analysis(analyze(path, also=also, progress=progress).result, target)


def _folder(path: Folder, options: "ImportOptions | None" = None, say: Progress | None = None) -> "RunFolder":
    from rlscope.importers.join import resolve

    return resolve(Path(path), options, say)


def _change(changes: Changes) -> "Change":
    """Return the changes as the model's type. Raises TypeError for an unknown name, and ImpossibleChangeError."""
    from rlscope.model.forecast.change import Change

    options: dict[str, Any] = {**changes}
    for name, value in options.items():
        if name not in CHANGE_LIMITS:
            near = get_close_matches(name, CHANGE_LIMITS, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"it takes {', '.join(CHANGE_LIMITS)}"
            raise TypeError(f"what_if() got an unexpected keyword argument {name!r}; {hint}")
        if value is not None:
            CHANGE_LIMITS[name].check(name, value, ImpossibleChangeError)
    return Change(**options)


def _several(paths: Folder | Sequence[Folder]) -> Sequence[Folder]:
    """Return the paths as a sequence, which has one element for a single path."""
    return (paths,) if isinstance(paths, str | PathLike) else paths
