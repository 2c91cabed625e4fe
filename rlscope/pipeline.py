"""The steps of an analysis: trace -> queries -> analysis -> model -> diagnosis; and the steps of `check`.

Nothing is computed here. `rlscope_otel` writes the trace, and `reports` presents the result.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import polars as pl

from rlscope.alerts.config import built_in_rules, load_rules, one_off
from rlscope.alerts.offline import RuleReport, evaluate_rules, tick_cells
from rlscope.alerts.types import RuleSet
from rlscope.analysis.bottleneck import dropped_ratio, full_auxiliary, judge, judged_interval, measure_losses
from rlscope.analysis.data_quality import assess_quality, leave_out_laid_out, several_epochs
from rlscope.analysis.interval import Interval
from rlscope.analysis.learning import learning_of
from rlscope.analysis.ledger import close_ledger, ledger_timeline, split_decoding
from rlscope.analysis.result import (
    NO_CONSTRAINTS,
    AnalysisResult,
    Constraints,
    Finding,
    Severity,
    hides_samplers,
)
from rlscope.analysis.run_facts import gather_facts, measure_throughput, steady_window
from rlscope.analysis.shifts import run_events
from rlscope.analysis.staleness import summarize_staleness
from rlscope.analysis.step_phases import step_phases
from rlscope.diagnose import find_all
from rlscope.diagnose.evidence import Evidence
from rlscope.model.causes import LossCause
from rlscope.model.step_bounds import step_bounds
from rlscope.trace.query import NO_CELLS, Cells, Grid, ask, make_grid, shorten_texts
from rlscope.trace.store import OpenRun, Partitioner, read_run

if TYPE_CHECKING:
    from rlscope.model.observed import OtherRun

Progress = Callable[[str], None]
"""Function that is called with a few words on the current activity."""

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
    "engine_deliveries",
    "weight_update_latency",
    "weight_update_parts",
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
    "trainer_speed",
    "reported_values",
    "open_phases",
    "truncation_by_step",
    "reward_moments",
)
"""Queries that every analysis runs, in order."""
_NO_FINDING_READS: Final = frozenset({"pass_latency", "judged_outcomes", "version_moments", "trainer_steps"})
"""Queries of these that only the model and the report read."""
DRAWN: Final = (
    "worker_timeline",
    "weight_marks",
    "training_metrics",
    "token_staleness_by_step",
    "staleness_heat",
    "staleness_parts",
    "batch_size",
    "waiting_requests",
    "kv_use",
    "queue_depth",
    "queue_wait_counts",
    "weight_update_spread",
    "response_lengths",
    "delivered_lengths",
    "throughput",
)
"""Queries whose answers only the report draws. Comparisons and trackers use a few of them."""


def say_nothing(_doing: str) -> None:
    """Ignore progress."""


def analyze(
    folder: Path | str,
    *,
    progress: Progress = say_nothing,
    constraints: Constraints = NO_CONSTRAINTS,
    divide: Partitioner | None = None,
    also_ask: Sequence[str] = DRAWN,
) -> AnalysisResult:
    """Analyze the run in a folder.

    Args:
        folder: The run folder.
        progress: Called with a few words on the current activity.
        constraints: Constraints on the recommended layout, and other runs of the same model.
        divide: How to share the work between processes, as in `open_run`.
        also_ask: Queries of DRAWN to run as well. They do not change the results.

    Raises:
        RunFolderError: The folder is not a run.
        AnalysisError: Another run of the constraints cannot be compared.
    """
    return read_run(folder, lambda run: _analyze_run(run, progress, constraints, also_ask), progress, divide)


def _analyze_run(run: OpenRun, progress: Progress, constraints: Constraints, also_ask: Sequence[str]) -> AnalysisResult:
    from rlscope.analysis.other_runs import read_other_runs  # Slow, and `check` does not need it.

    others = read_other_runs(run, constraints.also, progress)
    rules = built_in_rules()
    grid = focused_grid(run, tick_cells(run, rules))
    evidence = _evidence(run, _ask_all(run, grid, (*QUESTIONS, *also_ask), progress), progress)
    progress("fitting the model")
    explained = _explained(run, evidence, grid, constraints, others)
    progress("evaluating the built-in alert rules")
    return replace(explained, alerts=evaluate_rules(run, rules, beside=Cells(grid.origin_ns, grid.cell_ns)).alerts)


def _explained(
    run: OpenRun, evidence: Evidence, grid: Grid, constraints: Constraints, others: tuple["OtherRun", ...]
) -> AnalysisResult:
    """Return the analysis: the evidence, and what the model makes of it. It has no alerts yet."""
    # These imports are slow, and `check` does not need them.
    from rlscope.analysis.advise import advise
    from rlscope.model.forecast.result import NoModelResult

    facts, answers, refusal = evidence.run, evidence.answers, evidence.data_quality.refusal
    judged = Interval(grid.from_ns, grid.to_ns)
    inside = judged.clip(answers["ledger_timeline"], grid.bucket_ns)
    losses = measure_losses(inside, dropped_ratio(answers["judged_outcomes"]))
    lost: dict[LossCause, float] = {loss.cause: loss.gpu_s for loss in losses}
    unfit = refusal or full_auxiliary(inside) or several_epochs(answers)
    model = NoModelResult(unfit) if unfit else advise(run, facts, grid, answers, constraints, others, lost)
    known = None if isinstance(model, NoModelResult) else model
    ranking, efficiency = (known.ranking, known.efficiency) if known else (None, None)
    verdict = judge(
        *(facts.policy_gpus, facts.steps, inside, judged, losses, ranking, refusal),
        hides_samplers=hides_samplers(evidence.data_quality, evidence.ledger, answers),
    )
    analysis = AnalysisResult(
        run=facts,
        verdict=verdict,
        throughput=measure_throughput(facts, answers, run.imported),
        ledger=split_decoding(evidence.ledger, answers["pass_latency"], answers["worker_extents"], efficiency),
        staleness=evidence.staleness,
        findings=find_all(evidence),
        model=model,
        data_quality=evidence.data_quality,
        answers=answers,
        events=run_events(answers),
        learning=learning_of(answers["reward_moments"]),
    )
    is_unmodeled = run.imported is not None and known is None
    has_bounds = not refusal and (analysis.hides_samplers or is_unmodeled)
    phases = step_phases(answers, inside, judged, evidence.staleness, run.imported) if has_bounds else None
    return analysis if phases is None else replace(analysis, step_bounds=step_bounds(phases))


def with_drawn(folder: Path | str, analysis: AnalysisResult) -> AnalysisResult:
    """Return the analysis with all answers that the report draws, after running the missing queries.

    Raises RunFolderError if the folder is no longer a run.
    """
    missing = [name for name in DRAWN if name not in analysis.answers]

    def complete(run: OpenRun) -> AnalysisResult:
        answers = _ask_all(run, focused_grid(run), missing)
        leave_out_laid_out(run.imported, answers)
        return replace(analysis, answers={**analysis.answers, **answers})

    return read_run(folder, complete) if missing else analysis


def _evidence(run: OpenRun, answers: dict[str, pl.DataFrame], progress: Progress) -> Evidence:
    """Return the evidence in the answers without the model. Replaces the answer "ledger" by "ledger_timeline"."""
    progress("adding up the ledger")
    leave_out_laid_out(run.imported, answers)
    facts = gather_facts(run, answers)
    ledger = close_ledger(answers["ledger"], answers["worker_extents"], answers["gpu_agreement"])
    answers["ledger_timeline"] = ledger_timeline(answers.pop("ledger"))
    staleness = summarize_staleness(answers, run.config.max_staleness, run.imported)
    return Evidence(facts, run.config, ledger, staleness, assess_quality(run, answers), answers)


def find_problems(run: OpenRun) -> tuple[Finding, ...]:
    """Return the findings of an open run, without fitting the model."""
    asked = [name for name in QUESTIONS if name not in _NO_FINDING_READS]
    return find_all(_evidence(run, _ask_all(run, focused_grid(run), asked), say_nothing))


def focused_grid(run: OpenRun, beside: Cells = NO_CELLS) -> Grid:
    """Return the grid of a run, with bucket edges at both ends of the analyzed interval.

    Args:
        run: The open run.
        beside: Cells of another grid, as in `make_grid`.
    """
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
    folder: Path | str, rules: RuleSet, fail_on_finding: Severity | None = None, divide: Partitioner | None = None
) -> RuleReport:
    """Evaluate alert rules over the whole run in a folder, without the model.

    Args:
        folder: The run folder.
        rules: The rules to evaluate.
        fail_on_finding: Lowest severity of a finding that fails the check. None does not look for findings.
        divide: How to share the work between processes, as in `open_run`.

    Raises:
        RunFolderError: The folder is not a run.
        RuleError: DuckDB rejects the SELECT of a rule.
    """

    def evaluate(run: OpenRun) -> RuleReport:
        report = evaluate_rules(run, rules)
        if fail_on_finding is None:
            return report
        return replace(report, findings=find_problems(run), fail_on_finding=fail_on_finding)

    return read_run(folder, evaluate, divide=divide)


def rules_to_check(file: Path | None, one_offs: Sequence[str]) -> RuleSet:
    """Return the rules of a file (default: the built-in rules) and the one-off rules of the command line.

    Without a file, one-off rules replace the built-in rules. Raises RuleError if a rule cannot be used.
    """
    extra = tuple(one_off(text) for text in one_offs)
    rules = load_rules(file).rules if file is not None else built_in_rules()
    return replace(rules, rules=extra if file is None and extra else (*rules.rules, *extra))
