"""The whole pipeline on one screen: open a run, ask its questions, add up, diagnose, fit the model, recommend.

Beside it what needs the same: a run checked against alert rules, and a question to its model.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Final, NamedTuple

import polars as pl

from rlscope.alerts.config import built_in_rules, load_rules, one_off
from rlscope.alerts.metrics import RESIDUAL
from rlscope.alerts.offline import RuleReport, evaluate_rules
from rlscope.alerts.types import RuleSet
from rlscope.analysis.advise import NO_CONSTRAINTS, Constraints, advise
from rlscope.analysis.bottleneck import dropped_ratio, judge, judged_interval
from rlscope.analysis.data_quality import assess_quality
from rlscope.analysis.interval import Interval
from rlscope.analysis.ledger import close_ledger, ledger_timeline, split_decoding
from rlscope.analysis.observe import read_other_runs
from rlscope.analysis.result import Analysis, Severity
from rlscope.analysis.run_facts import gather_facts, measure_throughput, steady_window
from rlscope.analysis.staleness import summarise_staleness
from rlscope.diagnose import find_all
from rlscope.diagnose.evidence import Evidence
from rlscope.errors import AnalysisError, UnreadableDataError
from rlscope.model.forecast.change import Change
from rlscope.model.forecast.result import ModelResult, NoModelResult
from rlscope.model.forecast.whatif import WhatIf, what_if
from rlscope.trace.query import Grid, ask, make_grid
from rlscope.trace.store import Run, open_run

QUESTIONS: Final = (
    "worker_extents",
    "worker_timeline",
    "weight_marks",
    "ledger",
    "training_steps",
    "token_staleness_by_step",
    "token_staleness",
    "staleness_histogram",
    "staleness_heat",
    "staleness_parts",
    "version_sources",
    "sample_strips",
    "sample_staleness",
    "batch_size",
    "waiting_requests",
    "kv_use",
    "pass_latency",
    "engine_speed",
    "queue_depth",
    "queue_waits",
    "queue_wait_counts",
    "weight_update_latency",
    "weight_update_spread",
    "response_lengths",
    "delivered_lengths",
    "group_tail_counts",
    "step_tails",
    "step_waits",
    "delivery_outcomes",
    "token_balance",
    "judged_outcomes",
    "throughput",
    "gpu_agreement",
    "version_moments",
    "fresh_gap",
    "clock_bounds",
    "row_faults",
    "sampled_engines",
    "worker_devices",
    "trainer_steps",
)
"""What an analysis is made of."""


def say_nothing(_doing: str) -> None:
    """Progress that nobody is told of."""


def analyze(
    folder: Path | str, *, progress: Callable[[str], None] = say_nothing, constraints: Constraints = NO_CONSTRAINTS
) -> Analysis:
    """Analyse the run in a folder; progress is told what is being done, constraints are what the user asks of a layout.

    Raises RunFolderError for a folder that is no run, AnalysisError for another run of the constraints that cannot be
    compared. A file that turns out to be damaged inside is left out: the run is then read once in full to find it.
    """
    try:
        with open_run(Path(folder)) as run:
            return analyze_run(run, progress, constraints)
    except UnreadableDataError:
        progress("a file is damaged: reading every file to find which")
        with open_run(Path(folder), read_all=True) as run:
            return analyze_run(run, progress, constraints)


def analyze_run(
    run: Run, progress: Callable[[str], None] = say_nothing, constraints: Constraints = NO_CONSTRAINTS
) -> Analysis:
    """Analyse an open run. Raises AnalysisError for another run of the constraints that cannot be compared."""
    others = read_other_runs(run, constraints.also, progress)
    grid = focused_grid(run)
    answers = _ask_all(run, grid, progress)
    progress("adding up")
    facts = gather_facts(run, answers)
    ledger = close_ledger(answers["ledger"], answers["worker_extents"], answers["gpu_agreement"])
    answers["ledger_timeline"] = ledger_timeline(answers.pop("ledger"))
    staleness = summarise_staleness(answers, run.config.max_staleness)
    quality = assess_quality(run, answers)
    progress("fitting the model")
    evidence = Evidence(facts, run.config, ledger, staleness, quality, answers)
    model = advise(run, facts, grid, answers, constraints, others)
    progress("holding the run to the built-in rules")
    alerts = evaluate_rules(run, built_in_rules()).alerts
    efficiency = model.efficiency if isinstance(model, ModelResult) else None
    return Analysis(
        run=facts,
        verdict=judge(
            facts,
            answers["ledger_timeline"],
            grid.bucket_ns,
            Interval(grid.from_ns, grid.to_ns),
            dropped_ratio(answers["judged_outcomes"]),
        ),
        throughput=measure_throughput(facts, answers),
        ledger=split_decoding(ledger, answers["pass_latency"], answers["worker_extents"], efficiency),
        staleness=staleness,
        findings=find_all(evidence),
        model=model,
        alerts=alerts,
        data_quality=quality,
        answers=answers,
    )


def focused_grid(run: Run) -> Grid:
    """The grid of a run, with buckets that begin and end with the stretch that is judged."""
    steps = ask(run, "training_steps")
    extents = ask(run, "worker_extents")
    whole = Interval(min(extents["start_ns"], default=0), max(extents["end_ns"], default=0))
    return make_grid(run, *judged_interval(steady_window(steps), steps, whole))


def _ask_all(run: Run, grid: Grid, progress: Callable[[str], None]) -> dict[str, pl.DataFrame]:
    arguments = asdict(grid)
    answers: dict[str, pl.DataFrame] = {}
    for name in QUESTIONS:
        progress(name.replace("_", " "))
        answers[name] = ask(run, name, arguments)
    return answers


def check(folder: Path, rules: RuleSet) -> RuleReport:
    """Hold the run in a folder to rules.

    A file that turns out to be damaged inside is left out, as `analyze` does. Raises RunFolderError for a folder that
    is no run, RuleError for a rule's SELECT that is refused.
    """
    try:
        with open_run(folder) as run:
            return _hold(run, rules)
    except UnreadableDataError:
        with open_run(folder, read_all=True) as run:
            return _hold(run, rules)


def rules_to_check(file: Path | None, one_offs: Sequence[str]) -> RuleSet:
    """The rules of a file, and one-offs beside them; one-offs alone where only they are given; else the built-in ones.

    Raises RuleError.
    """
    extra = tuple(one_off(text) for text in one_offs)
    rules = load_rules(file) if file is not None else built_in_rules()
    return replace(rules, rules=extra if file is None and extra else (*rules.rules, *extra))


def failed(report: RuleReport, fail_on: Severity) -> bool:
    """Whether a rule of that severity or a graver one fired."""
    return report.reaches(fail_on)


def _hold(run: Run, rules: RuleSet) -> RuleReport:
    asks_model = any(rule.metric == RESIDUAL for rule in rules.rules)
    return evaluate_rules(run, rules, _residual_ratio(run) if asks_model else None)


def _residual_ratio(run: Run) -> float | None:
    """What the model's prediction of the trained tokens per second leaves unexplained; None without a prediction."""
    # The model is slow to import, and hardly any rule asks for it.
    from rlscope.model.forecast.result import NoModelResult

    model = analyze_run(run).model
    if isinstance(model, NoModelResult) or model.prediction is None:
        return None
    return next((each.residual_ratio for each in model.prediction.compared if each.quantity == "tokens_per_s"), None)


class Asked(NamedTuple):
    """What the model says of the run, and its answer."""

    model: ModelResult
    answer: WhatIf


def ask_run(
    folder: Path | str,
    change: Change,
    *,
    progress: Callable[[str], None] = say_nothing,
    constraints: Constraints = NO_CONSTRAINTS,
) -> Asked:
    """Analyse the run in a folder and ask its model; progress and constraints are those of `analyze`.

    To ask several questions, analyse once and call `rlscope.model.forecast.whatif.what_if` for each. Raises
    RunFolderError for a folder that is no run, AnalysisError for one that the model cannot be fitted to,
    ImpossibleChangeError for GPUs that make no layout.
    """
    model = analyze(folder, progress=progress, constraints=constraints).model
    if isinstance(model, NoModelResult):
        raise AnalysisError.of(
            folder,
            found=model.reason,
            expected="a run that the model can be fitted to",
            next_step="`rlscope analyze` says what the run does show.",
        )
    progress("asking the model")
    return Asked(model, what_if(model, change))
