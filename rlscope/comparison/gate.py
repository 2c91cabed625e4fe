"""Checks a run against alert rules and against a baseline, whose values are the thresholds of regression rules.

A rule names the baseline as in `throughput.steady_tokens_per_s < 0.95 * baseline`: the value of the metric over the
whole run after warm-up, computed as for a rule. The baseline is a run, or the JSON document of an analysis, which has
only the rate, staleness and idle shares.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, NamedTuple

import polars as pl

from rlscope.alerts.config import NUMBER, names_baseline, one_off, refused_line
from rlscope.alerts.evaluate import written
from rlscope.alerts.metrics import STEADY
from rlscope.alerts.offline import RuleOutcome, RuleReport, evaluate_rules
from rlscope.alerts.types import Direction, Rule, RuleSet
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
_FORM: Final = re.compile(
    rf"(?P<metric>\S+)\s*(?P<sign>[<>])\s*(?:(?P<factor>{NUMBER})\s*\*\s*)?baseline"
    rf"(?:\s*(?P<side>[+-])\s*(?P<offset>{NUMBER}))?"
)


@dataclass(frozen=True, slots=True)
class BaselineRule:
    """A rule with a threshold of factor * baseline + offset."""

    name: str
    metric: str
    direction: Direction
    factor: float = 1.0
    offset: float = 0.0
    severity: Severity = "critical"
    allows_noise: bool = False
    """Whether the threshold is lowered if the noise of the two runs requires it."""

    def rule(self, value: float, note: str) -> Rule:
        """Return the rule with the threshold for a value of the baseline; `note` names the source of the value."""
        threshold = self.factor * value + self.offset
        plain = Rule.over_run(self.name, self.metric, self.direction, threshold, self.severity)
        text = f"{written(plain, value)} in {note}".replace("{", "{{").replace("}", "}}")
        return replace(plain, annotations={"baseline": text})


REGRESSIONS: Final[tuple[BaselineRule, ...]] = (
    # A restart costs more than 5% is worth. If the steps of the runs vary by more, their noise counts instead.
    BaselineRule("throughput_regressed", STEADY, "below", factor=0.95, allows_noise=True),
    # Versions are whole numbers, so one more may be rounding.
    BaselineRule("staleness_regressed", "staleness.tokens.p95", "above", offset=1.0, severity="warning"),
    # One GPU in ten.
    BaselineRule("trainers_more_idle", "idle.trainer_ratio", "above", offset=0.1, severity="warning"),
    BaselineRule("samplers_more_idle", "idle.sampler_ratio", "above", offset=0.1, severity="warning"),
    BaselineRule("more_dropped_stale", "dropped_stale_ratio", "above", offset=0.05, severity="warning"),
    BaselineRule("weight_updates_regressed", "weight_update.gpu_ratio", "above", offset=0.05, severity="warning"),
)
"""The built-in rules of `rlscope check --baseline`."""

_WHY: Final = {
    STEADY: ", which counts response tokens; `rlscope compare` tests the rates of logs, whose tokens include prompts"
}
"""Why a metric may have no value, and what has."""


def baseline_rule(text: str) -> BaselineRule:
    """Return a critical rule from one line. Raises RuleError if its form or its metric is unknown."""
    found = _FORM.fullmatch(text.strip())
    if found is None:
        expected = "'METRIC < 0.95 * baseline', 'METRIC > baseline + 0.1' or 'METRIC > baseline'"
        raise refused_line(text, "a baseline in another form", expected)
    # `one_off` checks the metric, with a threshold that is valid for every metric.
    metric, sign = found["metric"], found["sign"]
    direction = one_off(f"{metric} {sign} 0").direction
    offset = float(found["offset"] or 0.0) * (-1.0 if found["side"] == "-" else 1.0)
    return BaselineRule(text, metric, direction, float(found["factor"] or 1.0), offset)


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
    report = _with_unjudged(report, missing, known.name)
    if {each.name for each in wanted} <= {outcome.rule.name for outcome in report.unjudged}:
        raise AnalysisError.of(
            baseline,
            found=f"no value that {folder} has too, of {', '.join(dict.fromkeys(each.metric for each in wanted))}",
            expected="two runs that recorded at least one of them",
            next_step="`rlscope doctor` shows what a run lacks; `rlscope compare` also compares the rates of logs.",
        )
    return report


def _with_unjudged(report: RuleReport, missing: Sequence[BaselineRule], baseline: str) -> RuleReport:
    """Return the report with the rules for which the baseline has no value: not evaluated, with a note on why."""
    outcomes = tuple(RuleOutcome(each.rule(math.nan, baseline), (), 1, 0) for each in missing)
    warnings = tuple(
        f"{each.name}: {baseline} has no value of {each.metric}{_WHY.get(each.metric, '')}" for each in missing
    )
    return replace(report, rules=(*report.rules, *outcomes), warnings=(*report.warnings, *warnings))


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
    return read_run(folder.path, lambda run: _Baseline(run.run_id, _values_of(run, metrics, rules), steady_steps(run)))


def _values_of(run: OpenRun, metrics: Sequence[str], rules: RuleSet) -> Mapping[str, float]:
    """Return each metric over the whole run after warm-up, without the metrics that have no value."""
    # A rule that always fires reports the value.
    always = tuple(Rule.over_run(metric, metric, "above", -math.inf, "info") for metric in dict.fromkeys(metrics))
    alerts = evaluate_rules(run, replace(rules, rules=always)).alerts
    return {alert.rule: alert.value for alert in alerts if alert.value is not None}


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
