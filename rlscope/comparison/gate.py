"""Checks a run against alert rules and against a baseline, whose values are the thresholds of regression rules.

The baseline is a run, or the JSON document of an analysis, which has only the rate, staleness and idle shares.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, NamedTuple

import polars as pl

from rlscope.alerts.baseline import REGRESSIONS, BaselineRule, baseline_rule, values_of, with_unjudged
from rlscope.alerts.config import names_baseline
from rlscope.alerts.metrics import STEADY
from rlscope.alerts.offline import RuleReport
from rlscope.alerts.types import Rule, RuleSet
from rlscope.analysis.ledger import IDLE_STATES, SAMPLER_ROLES, TRAINER_ROLES
from rlscope.analysis.result import Ledger, RunFacts, Severity, Staleness, Throughput
from rlscope.analysis.run_facts import steady_window
from rlscope.comparison.statistics import Difference, StepSeries, difference
from rlscope.document import Document, load
from rlscope.errors import AnalysisError
from rlscope.importers.join import resolve
from rlscope.pipeline import check, rules_to_check
from rlscope.trace.manifest import RUN_FILE
from rlscope.trace.query import ask
from rlscope.trace.store import OpenRun, Partitioner, read_run

_ROLES: Final[Mapping[str, tuple[str, ...]]] = {
    "idle.trainer_ratio": TRAINER_ROLES,
    "idle.sampler_ratio": SAMPLER_ROLES,
}


class _Baseline(NamedTuple):
    """The values of the baseline."""

    name: str
    values: Mapping[str, float]
    steps: StepSeries | None
    """Its steady-state rate step by step; None for a document, or without a steady state."""


def check_against(
    folder: Path,
    baseline: Path,
    file: Path | None,
    one_offs: Sequence[str],
    fail_on_finding: Severity | None = None,
    divide: Partitioner | None = None,
) -> RuleReport:
    """Evaluate alert rules and regression rules over the whole run in a folder.

    One-offs that name the baseline replace the built-in regression rules; other one-offs replace the built-in alert
    rules. baseline: run folder, log, metrics file, or JSON document of an analysis. divide: passed to `open_run` for
    the rules; this process reads the baseline and the run's noise itself.

    Raises RunFolderError if a folder is not a run, ImportFileError if no importer can read a file, AnalysisError if a
    document cannot be read or no rule that needs the baseline can be judged, or RuleError if a rule is invalid.
    """
    own = [baseline_rule(text) for text in one_offs if names_baseline(text)]
    plain = [text for text in one_offs if not names_baseline(text)]
    rules = rules_to_check(file, plain)
    if file is None and own and not plain:
        rules = replace(rules, rules=())
    wanted = own or REGRESSIONS
    known = _read(baseline, [each.metric for each in wanted], rules)
    missing = [each for each in wanted if not math.isfinite(known.values.get(each.metric, math.nan))]
    made = tuple(_rule(each, known, folder) for each in wanted if each not in missing)
    report = check(folder, replace(rules, rules=(*rules.rules, *made)), fail_on_finding, divide)
    report = with_unjudged(report, missing, known.name)
    if {each.name for each in wanted} <= {outcome.rule.name for outcome in report.unjudged}:
        raise AnalysisError.of(
            baseline,
            found=f"no value that {folder} has too, of {', '.join(dict.fromkeys(each.metric for each in wanted))}",
            expected="two runs that recorded at least one of them",
            next_step="`rlscope doctor` shows what a run lacks; `rlscope compare` also compares the rates of logs.",
        )
    return report


def _rule(wanted: BaselineRule, known: _Baseline, folder: Path) -> Rule:
    value, note = known.values[wanted.metric], f"the baseline {known.name}"
    if not wanted.allows_noise:
        return wanted.rule(value, note)
    steps = read_run(folder, steady_steps)
    if known.steps is None or steps is None:
        return wanted.rule(value, f"{note} (noise unknown)")
    noise = _noise_ratio(difference(known.steps, steps, "ratio"))
    if 1.0 - noise >= wanted.factor:
        return wanted.rule(value, note)
    return replace(wanted, factor=1.0 - noise).rule(value, f"{note}; {noise:.1%} is allowed for step-to-step noise")


def _noise_ratio(found: Difference) -> float:
    """Return how far below the baseline a rate may lie by chance; 0 if unknown."""
    if found.low is None or found.high is None:
        return 0.0
    reach = (math.log1p(found.high) - math.log1p(found.low)) / 2.0
    return max(1.0 - math.exp(-reach), found.own_change or 0.0)


def steady_steps(run: OpenRun) -> StepSeries | None:
    """Return the steady-state rate of an open run, step by step; None without a steady state or trained tokens."""
    steps = ask(run, "training_steps")
    window = steady_window(steps)
    if window is None:
        return None
    inside = steps.filter(window.is_inside, pl.col("step_s").is_not_null())
    if not inside["response_tokens"].sum():
        return None
    return StepSeries(inside["response_tokens"].to_numpy().astype(float), inside["step_s"].to_numpy())


def _read(baseline: Path, metrics: Sequence[str], rules: RuleSet) -> _Baseline:
    if baseline.is_file() and baseline.suffix == ".json" and baseline.name != RUN_FILE:
        document = _read_document(baseline)
        return _Baseline(document.run.run_id, document.metrics, None)
    folder = resolve(baseline)
    return read_run(folder.path, lambda run: _Baseline(run.run_id, values_of(run, metrics, rules), steady_steps(run)))


@dataclass(frozen=True, slots=True)
class _BaselineDocument(Document):
    """The keys of an analysis that a baseline needs. Its other keys, and those of later versions, are not read."""

    run: RunFacts
    throughput: Throughput
    ledger: Ledger
    staleness: Staleness

    @property
    def metrics(self) -> dict[str, float]:
        """Alert-rule metrics over the whole run, without those that the document lacks."""
        rates, tokens = self.throughput, self.staleness.tokens
        metrics: dict[str, float | None] = {
            # Rules count response tokens only.
            STEADY: rates.steady_tokens_per_s if rates.counted_tokens is None else None,
            "staleness.tokens.mean": None if tokens is None else tokens.mean,
            "staleness.tokens.p95": None if tokens is None else float(tokens.p95),
            **{metric: _idle_ratio(self.ledger, roles) for metric, roles in _ROLES.items()},
        }
        return {name: value for name, value in metrics.items() if value is not None}


def _read_document(path: Path) -> _BaselineDocument:
    """Read a file written by `rlscope analyze --json FILE`.

    Raises AnalysisError if the file cannot be read or is not such a document, naming the first invalid key.
    """
    try:
        return load(_BaselineDocument, path.read_bytes())
    except (OSError, ValueError) as error:
        raise AnalysisError.of(
            path,
            found=getattr(error, "strerror", None) or str(error),
            expected="a run folder, or the JSON document of an analysis",
            next_step="Write one with `rlscope analyze RUN_DIR --json FILE`.",
        ) from None


def _idle_ratio(ledger: Ledger, roles: tuple[str, ...]) -> float | None:
    states = [state for state in ledger.states if state.role in roles]
    total_ns = sum(state.gpu_ns for state in states)
    idle_ns = sum(state.gpu_ns for state in states if state.state in IDLE_STATES)
    return idle_ns / total_ns if total_ns else None
