"""The analysis as a JSON document: the facts of the run, with the words of the report beside them."""

from dataclasses import dataclass

from rlscope.analysis.data_quality import DataQuality
from rlscope.analysis.result import Alert, AnalysisResult, Ledger, Loss, RunFacts, Staleness, Verdict
from rlscope.document import Document, Json, as_dict, extended
from rlscope.model.decode.measurements import Grade
from rlscope.model.estimate import Estimate
from rlscope.model.forecast.actions import Action, ActionKind, ActionWhat, Cause
from rlscope.model.forecast.result import NoModelResult
from rlscope.model.forecast.sensitivity import Sensitivity
from rlscope.model.system import Layout
from rlscope.reports.documents.findings import ToldFinding, told_finding
from rlscope.reports.documents.model import (
    LatencyJson,
    ModelJson,
    RecommendationJson,
    ThroughputJson,
    TimeToFinishJson,
    latency_json,
    model_json,
    recommendation_json,
    throughput_json,
    time_to_finish_json,
)
from rlscope.reports.text import actions as action_words
from rlscope.reports.text import verdict as verdict_words
from rlscope.reports.text.actions import Cost


@dataclass(frozen=True, slots=True, kw_only=True)
class PricedLoss(Loss):
    """Cost of one cause: measured GPU time, and the modeled throughput gain from removing this cause alone."""

    recoverable_tokens_per_s: float | None
    """Trained tokens per second gained by removing this cause alone: the measured steady rate times `gain_ratio`; None
    if the model has no gain for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToldVerdict(Verdict):
    """The bottleneck and the losses that it was chosen from."""

    losses: tuple[PricedLoss, ...]
    """Cost of each cause, sorted by the gain from removing it, or by GPU time if there is no model."""
    alarm: str | None
    """A problem that makes the run worthless at any throughput; None if there is none."""
    headline: str
    """The verdict in one short sentence."""
    why: str
    """The evidence for the verdict."""
    next: str
    """The first action and its gain."""
    next_actions: tuple[str, ...]
    """The actions after the first, one sentence each."""


@dataclass(frozen=True, slots=True)
class ToldAction:
    """One action by itself, with its gain, its cost and the way to verify it."""

    kind: ActionKind
    """change: a setting that is at least 90% likely to gain 5% or more. probe: a less certain setting worth a short
    test. fix: work on code or machines. The gain of a fix assumes that its whole cost is removed, or that one side
    becomes 10% faster."""
    target: ActionWhat
    """The quantity that the action changes."""
    cause: Cause
    """The cause of lost throughput that the action addresses, in the terms of the verdict."""
    setting: str | None
    """Name of the setting in the run's framework or in run.json; None if no name is known."""
    before: Layout | float | None
    """Current value of the setting; None if it is unset."""
    after: Layout | float | None
    """New value of the setting; None if it is removed."""
    tokens_per_s: float | None
    """Trained tokens per second after the action: the measured steady rate times 1 plus `gain_ratio`."""
    gain_ratio: Estimate
    """Trained tokens per second over the current rate, less 1."""
    probability: float
    """Probability, 0 to 1, that the action gains 5% or more."""
    staleness_p95_before: int | None
    """Measured 95th percentile of the current staleness of samples, in versions."""
    staleness_p95_after: int | None
    """Modeled 95th percentile of the staleness of samples after the action, in versions; None if the queue would grow
    without limit."""
    staleness_p95_steps_before: float | None
    """95th percentile of the current staleness of samples, in optimizer steps; None if the action leaves the number of
    steps per version unchanged."""
    staleness_p95_steps_after: float | None
    """Modeled 95th percentile of the staleness of samples after the action, in optimizer steps."""
    effective_gain_ratio: float | None
    """Gain in trained tokens per second times the effective sample size at the staleness before and after, less 1; None
    unless importance ratios were recorded at three or more staleness values."""
    evidence: Grade | None
    """Distance of the action's decode batches from those that the run measured."""
    verify: str
    """Instructions to check the gain."""
    cost: Cost
    """Effort of the action: a restart of the run, a restart of the engines, or engineering."""
    headline: str
    """The action in words."""


@dataclass(frozen=True, slots=True)
class AnalysisDocument(Document):
    """Output of `rlscope analyze --json`: the whole analysis of one run."""

    run: RunFacts
    """The run."""
    verdict: ToldVerdict
    """The bottleneck and the next actions."""
    throughput: ThroughputJson
    """Response tokens per second."""
    ledger: Ledger
    """GPU time by state."""
    staleness: Staleness
    """Staleness of the trained tokens."""
    latency: LatencyJson
    """The fitted time of a decode pass."""
    recommendation: RecommendationJson
    """The recommended layout."""
    actions: tuple[ToldAction, ...]
    """All actions that gain 5% or more, in the recommended order; empty if the model could not be fitted."""
    time_to_finish: TimeToFinishJson
    """Duration of the rest of the run."""
    sensitivity: tuple[Sensitivity, ...] | None
    """Throughput change per 1% of each quantity, the largest first; None if the model could not be fitted."""
    model: ModelJson
    """Further results of the model."""
    findings: tuple[ToldFinding, ...]
    """Problems found, the most expensive first."""
    alerts: tuple[Alert, ...]
    """Periods in which a built-in alert rule fired, by start time."""
    data_quality: DataQuality
    """Gaps in the data."""


def as_document(analysis: AnalysisResult) -> dict[str, Json]:
    """Return the whole analysis, ready for `json.dumps(..., allow_nan=False)`."""
    return as_dict(analysis_document(analysis))


def analysis_document(analysis: AnalysisResult) -> AnalysisDocument:
    """Return the whole analysis."""
    model, ranked = analysis.model, verdict_words.actions_of(analysis)
    framework = analysis.run.settings.get("framework")
    return AnalysisDocument(
        run=analysis.run,
        verdict=_verdict(analysis),
        throughput=throughput_json(analysis.throughput, model),
        ledger=analysis.ledger,
        staleness=analysis.staleness,
        latency=latency_json(model),
        recommendation=recommendation_json(model, analysis.run),
        actions=tuple(_action(each, analysis) for each in ranked),
        time_to_finish=time_to_finish_json(model),
        sensitivity=None if isinstance(model, NoModelResult) else model.sensitivities,
        model=model_json(model),
        findings=tuple(told_finding(each, ranked, framework) for each in analysis.findings),
        alerts=analysis.alerts,
        data_quality=analysis.data_quality,
    )


def _verdict(analysis: AnalysisResult) -> ToldVerdict:
    steady_tokens_per_s = analysis.throughput.steady_tokens_per_s
    return extended(
        ToldVerdict,
        analysis.verdict,
        losses=tuple(_loss(loss, steady_tokens_per_s) for loss in analysis.verdict.losses),
        alarm=verdict_words.alarm(analysis),
        headline=verdict_words.headline(analysis),
        why=verdict_words.why(analysis),
        next=verdict_words.next_step(analysis),
        next_actions=tuple(verdict_words.then_steps(analysis)),
    )


def _loss(loss: Loss, steady_tokens_per_s: float | None) -> PricedLoss:
    gain, rate = loss.gain_ratio, steady_tokens_per_s
    return extended(
        PricedLoss, loss, recoverable_tokens_per_s=None if gain is None or rate is None else gain.value * rate
    )


def _action(action: Action, analysis: AnalysisResult) -> ToldAction:
    steady_tokens_per_s, staleness = analysis.throughput.steady_tokens_per_s, action.staleness
    own = verdict_words.own_staleness(analysis)
    ages = action_words.ages_of(action, own)
    return ToldAction(
        kind=action.kind,
        target=action.what,
        cause=action.cause,
        setting=action_words.setting_of(action, analysis.run),
        before=action.before,
        after=action.after,
        tokens_per_s=None if steady_tokens_per_s is None else steady_tokens_per_s * (1.0 + action.gain_ratio.value),
        gain_ratio=action.gain_ratio,
        probability=action.worthwhile_probability,
        staleness_p95_before=None if own is None else own.sample_p95,
        staleness_p95_after=None if staleness is None else staleness.sample_p95,
        staleness_p95_steps_before=ages.before if ages and ages.in_steps else None,
        staleness_p95_steps_after=ages.after if ages and ages.in_steps else None,
        effective_gain_ratio=action_words.effective_gain_ratio(action, analysis),
        evidence=action.grade,
        verify=action_words.verify_words(action, steady_tokens_per_s),
        cost=action_words.cost_of(action),
        headline=action_words.what_to_do(action),
    )
