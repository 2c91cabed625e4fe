"""The functions that `import rlscope` offers and that the command line calls.

This module only composes: every number is computed elsewhere. Each function opens the run, answers and closes it again;
only a `Run` from `open` stays open. Results are frozen dataclasses that write themselves in every format. Imports are
inside the functions, so that a query or a check waits for neither the model nor the charts.
"""

from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from rlscope.errors import Bounds, check_one_of

if TYPE_CHECKING:
    from rlscope.analysis.result import Severity
    from rlscope.importers.join import RunFolder
    from rlscope.importers.target import ImportOptions
    from rlscope.pipeline import Progress
    from rlscope.reports.check import CheckReport
    from rlscope.reports.documents.doctor import DoctorReport
    from rlscope.results import Analysis, Comparison, PlanAnswer, RunList
    from rlscope.run import Run

Folder: TypeAlias = str | PathLike[str]


def open(path: Folder) -> "Run":
    """Open a run for queries, in a `with` block.

    Args:
        path: Run folder, or a log or metrics file of a framework.

    Raises:
        RunFolderError: The folder is not a run, or this version cannot read it.
        ImportFileError: No importer can read the file.
        UnreadableDataError: A file of the run is damaged.
    """
    from rlscope.run import Run

    return Run(path)


def analyze(
    path: Folder,
    max_staleness: int | None = None,
    gpus_per_node: int = 1,
    also: Folder | Sequence[Folder] = (),
    progress: "Progress | None" = None,
    options: "ImportOptions | None" = None,
    ray: str | None = None,
    page: bool = True,
) -> "Analysis":
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
    from rlscope.document import extended
    from rlscope.results import Analysis

    if max_staleness is not None:
        Bounds(0).check("max_staleness", max_staleness)
    Bounds(1).check("gpus_per_node", gpus_per_node)
    others = (also,) if isinstance(also, str | PathLike) else also
    constraints = Constraints(max_staleness, gpus_per_node, tuple(map(Path, others)))
    folder, say = _folder(path, options, progress), progress or pipeline.say_nothing
    drawn, divide = pipeline.DRAWN if page else (), on_ray(ray, say)
    result = pipeline.analyze(folder.path, progress=say, constraints=constraints, divide=divide, also_ask=drawn)
    return extended(Analysis, result, path=Path(path), folder=folder)


def plan(path: Folder, max_staleness: int | None = None) -> "PlanAnswer":
    """Recommend a layout for a planned run.

    Args:
        path: Plan in TOML; `rlscope plan --example` prints one.
        max_staleness: Staleness cap of samples, in versions. None uses the plan's cap.

    Raises:
        RlscopeError: The plan cannot be read. The message names the key.
        ArgumentError: The cap is out of range.
    """
    from rlscope.document import extended
    from rlscope.planning.build import plan_ahead
    from rlscope.results import PlanAnswer

    if max_staleness is not None:
        Bounds(0).check("max_staleness", max_staleness)
    file, result = plan_ahead(Path(path), max_staleness)
    return extended(PlanAnswer, result, file=file)


def check(
    path: Folder,
    rules: Folder | None = None,
    fail_if: str | Sequence[str] = (),
    fail_on_finding: "Severity | None" = None,
    baseline: Folder | None = None,
    ray: str | None = None,
) -> "CheckReport":
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
        AnalysisError: The JSON document of the baseline cannot be read, or has no value that the run has too.
        ArgumentError: An argument is out of range.
    """
    from rlscope import pipeline
    from rlscope.analysis.result import SEVERITIES
    from rlscope.cluster import on_ray
    from rlscope.document import extended
    from rlscope.reports.check import CheckReport

    one_offs = (fail_if,) if isinstance(fail_if, str) else tuple(fail_if)
    if fail_on_finding is not None:
        check_one_of("fail_on_finding", fail_on_finding, SEVERITIES)
    file, divide = None if rules is None else Path(rules), on_ray(ray, pipeline.say_nothing)
    folder = _folder(path)
    if baseline is None:
        report = pipeline.check(folder.path, pipeline.rules_to_check(file, one_offs), fail_on_finding, divide)
    else:
        from rlscope.comparison.gate import check_against

        report = check_against(folder.path, Path(baseline), file, one_offs, fail_on_finding, divide)
    return extended(CheckReport, report)


def doctor(path: Folder, progress: "Progress | None" = None, options: "ImportOptions | None" = None) -> "DoctorReport":
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
    from rlscope.importers.recognize import also_recognized
    from rlscope.reports.documents.doctor import DoctorReport, OtherFile
    from rlscope.reports.text.doctor import checks
    from rlscope.trace.manifest import read_manifest
    from rlscope.trace.store import read_run

    # Keep a reference: the temporary folder of an imported run is removed with the last one.
    folder = _folder(path, options, progress)
    found = tuple(checks(read_run(folder.path, examine)))
    known = {Path(path), *(options.with_files if options else ()), *(options.engine_logs if options else ())}
    imported = read_manifest(folder.path).imported
    others = also_recognized(Path(path), known, imported.files if imported else ())
    return DoctorReport(found, tuple(OtherFile(*each) for each in others))


def compare(
    baseline: "Folder | Analysis", *runs: "Folder | Analysis", progress: "Progress | None" = None
) -> "Comparison":
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
    from rlscope.document import extended
    from rlscope.pipeline import say_nothing
    from rlscope.results import Analysis, Comparison

    opened = [each if isinstance(each, Analysis) else _folder(each, say=progress) for each in (baseline, *runs)]
    given = [each.drawn if isinstance(each, Analysis) else each.path for each in opened]
    paths = [each.path if isinstance(each, Analysis) else Path(each) for each in (baseline, *runs)]
    first, *others = read_runs(given, paths, progress or say_nothing)
    return extended(Comparison, compare_runs(first, others))


def list_runs(
    folder: Folder,
    *,
    sort: str = "started_ns",
    reverse: bool = False,
    filters: str | Sequence[str] = (),
    cache: bool = True,
    progress: "Progress | None" = None,
) -> "RunList":
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
    from rlscope.results import RunList

    filters = (filters,) if isinstance(filters, str) else filters
    # Reject an invalid column or filter before hours of analysis.
    sorted_entries(filtered_entries((), filters), sort, reverse=reverse)
    entries = list_entries(Path(folder), use_cache=cache, progress=progress or say_nothing, filters=filters)
    runs = sorted_entries(filtered_entries(entries, filters), sort, reverse=reverse)
    return RunList(runs, folder=str(folder))


def _folder(path: Folder, options: "ImportOptions | None" = None, say: "Progress | None" = None) -> "RunFolder":
    from rlscope.importers.join import resolve

    return resolve(Path(path), options, say)
