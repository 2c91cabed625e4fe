"""The whole pipeline on one screen: open, ask, add up, judge, look ahead."""

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Final

import polars as pl

from rlscope.alerts.rules import built_in_rules
from rlscope.alerts.whole_run import hold_to_rules
from rlscope.analysis import Analysis
from rlscope.data_quality import assess_quality
from rlscope.diagnose.evidence import Evidence
from rlscope.diagnose.rules import find_illnesses
from rlscope.errors import UnreadableDataError
from rlscope.interval import Interval
from rlscope.ledger import close_ledger, ledger_timeline, split_decoding
from rlscope.look_ahead import NO_WISHES, Wishes, outlook_of
from rlscope.model.outlook import Outlook
from rlscope.other_runs import read_other_runs
from rlscope.query import Grid, ask, make_grid
from rlscope.run_facts import gather_facts, measure_throughput, steady_window
from rlscope.staleness import summarise_staleness
from rlscope.store import Run, open_run
from rlscope.verdict import dropped_ratio, judge, judged_interval

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
    folder: Path | str, *, progress: Callable[[str], None] = say_nothing, wishes: Wishes = NO_WISHES
) -> Analysis:
    """Analyse the run in a folder; progress is told what is being done, wishes are what the user asks of a layout.

    Raises RunFolderError for a folder that is no run, AnalysisError for another run of the wishes that cannot be
    compared. A file that turns out to be damaged inside is left out: the run is then read once in full to find it.
    """
    try:
        with open_run(Path(folder)) as run:
            return analyze_run(run, progress, wishes)
    except UnreadableDataError:
        progress("a file is damaged: reading every file to find which")
        with open_run(Path(folder), read_all=True) as run:
            return analyze_run(run, progress, wishes)


def analyze_run(run: Run, progress: Callable[[str], None] = say_nothing, wishes: Wishes = NO_WISHES) -> Analysis:
    """Analyse an open run. Raises AnalysisError for another run of the wishes that cannot be compared."""
    others = read_other_runs(run, wishes.also, progress)
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
    outlook = outlook_of(run, facts, grid, answers, wishes, others)
    progress("holding the run to the built-in rules")
    alerts = hold_to_rules(run, built_in_rules()).alerts
    efficiency = outlook.efficiency if isinstance(outlook, Outlook) else None
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
        findings=find_illnesses(evidence),
        outlook=outlook,
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
