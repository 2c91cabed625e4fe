"""The whole way of an analysis on one screen: trace -> questions -> analysis -> model -> diagnosis. Beside it, `check`.

What writes the trace is `rlscope_otel`; what is made of the result is `reports`. Nothing is computed here.
"""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import Final, TypeVar

import polars as pl

from rlscope.alerts.config import built_in_rules, load_rules, one_off
from rlscope.alerts.metrics import RESIDUAL
from rlscope.alerts.offline import RuleReport, evaluate_rules, tick_cells
from rlscope.alerts.types import RuleSet
from rlscope.analysis.bottleneck import dropped_ratio, judge, judged_interval, measure_losses
from rlscope.analysis.data_quality import assess_quality, leave_out_laid_out
from rlscope.analysis.interval import Interval
from rlscope.analysis.ledger import close_ledger, ledger_timeline, split_decoding
from rlscope.analysis.result import NO_CONSTRAINTS, AnalysisResult, Constraints, Finding, Severity
from rlscope.analysis.run_facts import gather_facts, measure_throughput, steady_window
from rlscope.analysis.staleness import summarise_staleness
from rlscope.diagnose import find_all
from rlscope.diagnose.evidence import Evidence
from rlscope.errors import UnreadableDataError, VanishedFileError
from rlscope.trace.query import NO_CELLS, Cells, Grid, ask, make_grid, shorten_texts
from rlscope.trace.store import MOST_READS, Divide, OpenRun, open_run

Progress = Callable[[str], None]
"""Called with what is being done, in a few words."""
_Read = TypeVar("_Read")

QUESTIONS: Final = (
    "worker_extents",
    "ledger",
    "training_steps",
    "token_staleness",
    "staleness_histogram",
    "version_sources",
    "oldest_staleness",
    "pass_latency",
    "engine_speed",
    "weight_update_latency",
    "step_tails",
    "step_waits",
    "delivery_outcomes",
    "token_balance",
    "judged_outcomes",
    "gpu_agreement",
    "version_moments",
    "fresh_gap",
    "row_faults",
    "sampled_engines",
    "worker_devices",
    "shared_gpus",
    "trainer_steps",
    "reported_values",
)
"""The questions that an analysis asks of a run, in order."""
DRAWN: Final = (
    "worker_timeline",
    "idle_stretches",
    "weight_marks",
    "training_metrics",
    "token_staleness_by_step",
    "staleness_heat",
    "staleness_parts",
    "sample_strips",
    "batch_size",
    "waiting_requests",
    "kv_use",
    "queue_depth",
    "queue_waits",
    "queue_wait_counts",
    "weight_update_spread",
    "response_lengths",
    "delivered_lengths",
    "group_tail_counts",
    "throughput",
    "clock_bounds",
)
"""Those whose answers only the page draws; comparisons and trackers take a few of them."""


def say_nothing(_doing: str) -> None:
    """Progress that is not shown."""


def analyze(
    folder: Path | str,
    *,
    progress: Progress = say_nothing,
    constraints: Constraints = NO_CONSTRAINTS,
    divide: Divide | None = None,
    also_ask: Sequence[str] = DRAWN,
) -> AnalysisResult:
    """Analyse the run in a folder; constraints are what the user asks of a layout. divide: that of `open_run`.

    also_ask: those of DRAWN that are wanted; what the analysis says is the same without them. Raises RunFolderError for
    a folder that is not a run, AnalysisError for another run of the constraints that cannot be compared.
    """
    return read_run(folder, lambda run: analyze_run(run, progress, constraints, also_ask), progress, divide)


def analyze_run(
    run: OpenRun,
    progress: Progress = say_nothing,
    constraints: Constraints = NO_CONSTRAINTS,
    also_ask: Sequence[str] = DRAWN,
) -> AnalysisResult:
    """Analyse an open run. Raises AnalysisError for another run of the constraints that cannot be compared."""
    # Slow to import, and `check` does without.
    from rlscope.analysis.advise import advise
    from rlscope.analysis.observe import read_other_runs
    from rlscope.model.forecast.result import NoModelResult

    others = read_other_runs(run, constraints.also, progress)
    rules = built_in_rules()
    grid = focused_grid(run, tick_cells(run, rules))
    answers = _ask_all(run, grid, (*QUESTIONS, *also_ask), progress)
    leave_out_laid_out(run.imported, answers)
    evidence = _evidence(run, answers, progress)
    facts = evidence.run
    judged, dropped = Interval(grid.from_ns, grid.to_ns), dropped_ratio(answers["judged_outcomes"])
    losses = measure_losses(answers["ledger_timeline"], grid.bucket_ns, judged, dropped)
    progress("fitting the model")
    refusal = evidence.data_quality.refusal
    lost = {each.cause: each.gpu_s for each in losses}
    model = NoModelResult(refusal) if refusal else advise(run, facts, grid, answers, constraints, others, lost)
    progress("evaluating the built-in alert rules")
    alerts = evaluate_rules(run, rules, beside=Cells(grid.origin_ns, grid.cell_ns)).alerts
    ranking = None if isinstance(model, NoModelResult) else model.ranking
    efficiency = None if isinstance(model, NoModelResult) else model.efficiency
    return AnalysisResult(
        run=facts,
        verdict=judge(facts, answers["ledger_timeline"], grid.bucket_ns, judged, losses, ranking, refusal),
        throughput=measure_throughput(facts, answers),
        ledger=split_decoding(evidence.ledger, answers["pass_latency"], answers["worker_extents"], efficiency),
        staleness=evidence.staleness,
        findings=find_all(evidence),
        model=model,
        alerts=alerts,
        data_quality=evidence.data_quality,
        answers=answers,
    )


def with_drawn(folder: Path | str, analysis: AnalysisResult) -> AnalysisResult:
    """The analysis of the run in a folder with the answers that the page draws; those that it lacks are asked now.

    Raises RunFolderError for a folder that is no longer a run.
    """
    missing = [name for name in DRAWN if name not in analysis.answers]

    def complete(run: OpenRun) -> AnalysisResult:
        answers = _ask_all(run, focused_grid(run), missing)
        leave_out_laid_out(run.imported, answers)
        return replace(analysis, answers={**analysis.answers, **answers})

    return read_run(folder, complete) if missing else analysis


def _evidence(run: OpenRun, answers: dict[str, pl.DataFrame], progress: Progress) -> Evidence:
    """What the answers say before the model is asked; the answer "ledger" becomes "ledger_timeline" among them."""
    progress("adding up the ledger")
    facts = gather_facts(run, answers)
    ledger = close_ledger(answers["ledger"], answers["worker_extents"], answers["gpu_agreement"])
    answers["ledger_timeline"] = ledger_timeline(answers.pop("ledger"))
    staleness = summarise_staleness(answers, run.config.max_staleness)
    return Evidence(facts, run.config, ledger, staleness, assess_quality(run, answers), answers)


def find_problems(run: OpenRun) -> tuple[Finding, ...]:
    """The findings of an open run, without the model."""
    return find_all(_evidence(run, _ask_all(run, focused_grid(run), QUESTIONS), say_nothing))


def focused_grid(run: OpenRun, beside: Cells = NO_CELLS) -> Grid:
    """The grid of a run, with buckets that begin and end with the stretch that is judged. beside: of `make_grid`."""
    steps = ask(run, "training_steps")
    extents = ask(run, "worker_extents")
    whole = Interval(min(extents["start_ns"], default=0), max(extents["end_ns"], default=0))
    return make_grid(run, *judged_interval(steady_window(steps), steps, whole), beside)


def _ask_all(
    run: OpenRun, grid: Grid, names: Sequence[str], progress: Progress = say_nothing
) -> dict[str, pl.DataFrame]:
    arguments = asdict(grid)
    answers: dict[str, pl.DataFrame] = {}
    for name in names:
        progress(name.replace("_", " "))
        answers[name] = shorten_texts(ask(run, name, arguments))
    return answers


def check(
    folder: Path | str, rules: RuleSet, fail_on_finding: Severity | None = None, divide: Divide | None = None
) -> RuleReport:
    """Evaluate alert rules over the whole run in a folder; the model is asked only where a rule needs it.

    fail_on_finding: also look for findings, and the lowest severity of one that fails. divide: that of `open_run`.
    Raises RunFolderError for a folder that is not a run, RuleError for a rule's SELECT that is refused.
    """
    asks_model = any(rule.metric == RESIDUAL for rule in rules.rules)

    def evaluate(run: OpenRun) -> RuleReport:
        report = evaluate_rules(run, rules, _residual_ratio(run) if asks_model else None)
        if fail_on_finding is None:
            return report
        return replace(report, findings=find_problems(run), fail_on_finding=fail_on_finding)

    return read_run(folder, evaluate, divide=divide)


def rules_to_check(file: Path | None, one_offs: Sequence[str]) -> RuleSet:
    """The rules of a file and the one-offs beside them; one-offs alone where no file is given; else the built-in rules.

    Raises RuleError.
    """
    extra = tuple(one_off(text) for text in one_offs)
    rules = load_rules(file) if file is not None else built_in_rules()
    return replace(rules, rules=extra if file is None and extra else (*rules.rules, *extra))


def _residual_ratio(run: OpenRun) -> float | None:
    """What the model's prediction of the trained tokens per second leaves unexplained; None without a prediction."""
    from rlscope.model.forecast.result import NoModelResult

    model = analyze_run(run, also_ask=()).model
    if isinstance(model, NoModelResult) or model.prediction is None:
        return None
    return next((each.residual_ratio for each in model.prediction.compared if each.quantity == "tokens_per_s"), None)


def read_run(
    folder: Path | str,
    use: Callable[[OpenRun], _Read],
    progress: Progress = say_nothing,
    divide: Divide | None = None,
) -> _Read:
    """What is made of the open run. A file that turns out to be damaged is left out: every file is then read first.

    Raises VanishedFileError if files of a run in progress are merged each
    time that they are read.
    """
    read_all, reads = False, 1
    while True:
        connected = nullcontext() if divide is None else divide.connected()
        try:
            with connected, open_run(Path(folder), read_all=read_all, divide=divide) as run:
                return use(run)
        except VanishedFileError:
            if reads == MOST_READS:
                raise
            reads += 1
            progress("a file was merged into another while it was read: listing them again")
        except UnreadableDataError:
            if read_all:
                raise
            read_all = True
            progress("a file is damaged: reading every file to find which")
