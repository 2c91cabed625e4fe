"""The analysis as a JSON document: the facts of the run here, the results of the model in `model.py`.

Numbers are as measured, in the unit that their name ends in. Unknown values are null, and NaN never appears.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

from pydantic import ConfigDict, Field, WithJsonSchema

from rlscope.analysis.result import (
    AnalysisResult,
    Bottleneck,
    EvidenceValue,
    Finding,
    Ledger,
    Loss,
    RunFacts,
    Severity,
    Staleness,
    SteadyWindow,
    TokenStaleness,
)
from rlscope.comparison.facts import devices_of, flattened, plain
from rlscope.model.decode.measurements import Grade
from rlscope.model.forecast.actions import Action, ActionKind, ActionWhat, Cause
from rlscope.model.forecast.result import NoModelResult
from rlscope.model.system import Layout
from rlscope.reports.documents import FINITE, SCHEMA_VERSION, Document, Figure, Json
from rlscope.reports.documents.check import AlertJson
from rlscope.reports.documents.data_quality import DataQualityJson
from rlscope.reports.documents.layouts import GainJson, LayoutJson, gain_json, layout_json
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
from rlscope.reports.documents.what_if import SensitivityJson, sensitivities_json
from rlscope.reports.text import actions as action_words
from rlscope.reports.text import findings
from rlscope.reports.text import verdict as verdict_words
from rlscope.reports.text.actions import Cost

Evidence = Annotated[EvidenceValue, FINITE, WithJsonSchema({"type": ["number", "string", "null"]})]
"""One piece of evidence."""


class WindowJson(Document):
    """The steady state: the last stretch of steps over which the run kept a constant pace."""

    start_ns: int
    """Start, in UTC epoch nanoseconds."""
    end_ns: int
    """End, in UTC epoch nanoseconds."""
    first_step: int
    """First optimizer step of the steady state."""
    last_step: int
    """Last optimizer step of the steady state."""
    reason: str
    """Reason for these limits."""


class RunJson(Document):
    """The run: its GPUs, its length, and the amount of training."""

    run_id: str
    """Identifier of the run."""
    started_ns: int
    """Start of the run, in UTC epoch nanoseconds."""
    duration_s: Figure
    """Length of the run, in seconds."""
    total_gpus: int
    """Total number of GPUs."""
    trainer_gpus: int
    """Trainer GPUs."""
    sampler_gpus: int
    """Sampler GPUs."""
    colocated_gpus: int
    """GPUs that both train and sample."""
    steps: int
    """Optimizer steps."""
    samples_trained: int
    """Samples trained on."""
    tokens_trained: int | None
    """Response tokens trained on, counted once per use; null if more than 5% of the trained samples were not
    recorded."""
    max_staleness: int | None
    """Staleness cap of the run's config, in versions; null if the config has none."""
    window: WindowJson | None
    """The steady state; null if there is none."""
    window_reason: str
    """Reason for the limits of the steady state, or why there is none."""
    settings: Mapping[str, str | int | float | bool | None]
    """The config of run.json: nested entries by dotted names, lists as text."""
    devices: Mapping[str, str]
    """Recorded GPU models, by role."""


class MeasuredLossJson(Document):
    """GPU time lost to one cause, over the verdict's time range."""

    cause: Bottleneck
    """The cause that the GPUs waited for."""
    gpu_s: Figure
    """Measured GPU-seconds lost."""
    side_share_ratio: Figure
    """Measured share, 0 to 1, of the GPU time of the side that lost it."""


class LossJson(GainJson, MeasuredLossJson):
    """Cost of one cause: measured GPU time, and the modeled throughput gain from removing this cause alone."""

    recoverable_tokens_per_s: Figure
    """Trained tokens per second gained by removing this cause alone: the measured steady rate times `gain_ratio`; null
    if the model has no gain for it."""


class VerdictJson(Document):
    """The bottleneck and the losses that it was chosen from."""

    bottleneck: Bottleneck
    """The bottleneck of the run."""
    cause: Bottleneck | None
    """The bottleneck if it is a cause; null if the run is balanced or the bottleneck is unknown."""
    tied_with: tuple[Bottleneck, ...]
    """Other causes whose cost cannot be told apart from the bottleneck's."""
    alarm: str | None
    """A problem that makes the run worthless at any throughput; null if there is none."""
    headline: str
    """The verdict in one short sentence."""
    why: str
    """The evidence for the verdict."""
    next: str
    """The first action and its gain."""
    next_actions: tuple[str, ...]
    """The actions after the first, one sentence each."""
    unknown_reason: str | None
    """The data that a verdict lacks; null if there is a verdict."""
    losses: tuple[LossJson, ...]
    """Cost of each cause, sorted by the gain from removing it, or by GPU time if there is no model."""
    start_ns: int
    """Start of the verdict's time range, in UTC epoch nanoseconds."""
    end_ns: int
    """End of the verdict's time range, in UTC epoch nanoseconds."""


Setting = Annotated[int | float, WithJsonSchema({"type": "number"})] | LayoutJson | None
"""A setting: a number or a layout."""


class ActionSettingJson(Document):
    """The setting that an action changes."""

    kind: ActionKind
    """change: a setting that is at least 90% likely to gain 5% or more. probe: a less certain setting worth a short
    test. fix: work on code or machines. The gain of a fix assumes that its whole cost is removed, or that one side
    becomes 10% faster."""
    target: ActionWhat
    """The quantity that the action changes."""
    cause: Cause
    """The cause of lost throughput that the action addresses, in the terms of the verdict."""
    setting: str | None
    """Name of the setting in the run's framework or in run.json; null if no name is known."""
    from_: Setting = Field(serialization_alias="from")
    """Current value of the setting; null if it is unset."""
    to: Setting
    """New value of the setting; null if it is removed."""
    tokens_per_s: Figure
    """Trained tokens per second after the action: the measured steady rate times 1 plus `gain_ratio`."""


class ActionJson(GainJson, ActionSettingJson):
    """One action by itself, with its gain, its cost and the way to verify it."""

    probability: Figure
    """Probability, 0 to 1, that the action gains 5% or more."""
    staleness_p95_before: int | None
    """Measured 95th percentile of the current staleness of samples, in versions."""
    staleness_p95_after: int | None
    """Modeled 95th percentile of the staleness of samples after the action, in versions; null if the queue would grow
    without limit."""
    staleness_p95_steps_before: Figure
    """95th percentile of the current staleness of samples, in optimizer steps; null if the action leaves the number of
    steps per version unchanged."""
    staleness_p95_steps_after: Figure
    """Modeled 95th percentile of the staleness of samples after the action, in optimizer steps."""
    effective_gain_ratio: Figure
    """Gain in trained tokens per second times the effective sample size at the staleness before and after, less 1; null
    unless importance ratios were recorded at three or more staleness values."""
    evidence: Grade | None
    """Distance of the action's decode batches from those that the run measured."""
    verify: str
    """Instructions to check the gain."""
    cost: Cost
    """Effort of the action: a restart of the run, a restart of the engines, or engineering."""
    headline: str
    """The action in words."""


class LedgerStateJson(Document):
    """The GPU time of one role in one state."""

    role: str
    """Role of the workers."""
    state: str
    """Activity of the workers."""
    reason: str | None
    """Reason for the wait; null if the state needs no reason."""
    gpu_s: float
    """GPU-seconds in this state."""
    gpu_ns: int
    """The exact GPU time in this state, in GPU-nanoseconds."""
    share_ratio: Figure
    """Share of the role's GPU time, 0 to 1."""
    gpu_idle_ratio: Figure
    """Share of this time, 0 to 1, in which the GPU ran no kernel; null without GPU samples."""
    underfilled_gpu_s: float | None
    """GPU-seconds of decoding that fuller batches would have saved; null for other states and without a model."""
    underfilled_gpu_ns: int | None
    """`underfilled_gpu_s` in GPU-nanoseconds, exactly."""


class UnrecordedTimeJson(Document):
    """Time in which a worker was not recorded."""

    worker_id: str
    """The worker."""
    before_s: float
    """Seconds between the start of the run and the start of the worker."""
    after_s: float
    """Seconds between the end of the worker and the end of the run."""
    gpu_s: float
    """GPU-seconds of both. They are not part of any state."""


class LedgerJson(Document):
    """All GPU time of every worker; each moment is in exactly one state."""

    total_gpu_s: float
    """GPU-seconds of all workers between their start and their end."""
    total_gpu_ns: int
    """GPU-nanoseconds of all workers: exactly the sum of all states."""
    states: tuple[LedgerStateJson, ...]
    """GPU time by role and state, sorted by time within each role."""
    unrecorded: tuple[UnrecordedTimeJson, ...]
    """Workers with GPUs that were not recorded for 5% of the run or more, the longest gap first."""


class StalenessCountJson(Document):
    """Number of tokens at one staleness."""

    staleness: int
    """Staleness, in versions."""
    tokens: int
    """Trained tokens at that staleness."""


class TokenStalenessJson(Document):
    """Staleness of the trained response tokens, weighted by tokens, in versions."""

    mean: Figure
    """Mean, in versions."""
    p50: int
    """Median, in versions."""
    p95: int
    """95th percentile, in versions."""
    p99: int
    """99th percentile, in versions."""
    max: int
    """Maximum, in versions."""
    histogram: tuple[StalenessCountJson, ...]
    """Trained tokens by staleness."""


class SampleStalenessJson(Document):
    """Staleness of the trained samples, measured at their oldest token."""

    mean: Figure
    """Mean, in versions."""
    max: int
    """Maximum, in versions."""


class StalenessJson(Document):
    """Staleness of tokens at the time of training."""

    tokens: TokenStalenessJson | None
    """Staleness of tokens; null if nothing was trained."""
    samples: SampleStalenessJson | None
    """Staleness of samples; null if nothing was trained."""
    in_flight_mean: Figure
    """Mean number of versions published between a token and the end of its sample."""
    in_queue_mean: Figure
    """Mean number of versions published between the end of a sample and its gradient step."""
    over_cap_tokens: int | None
    """Tokens trained beyond the staleness cap; null if the run has no cap."""
    version_source: Mapping[str, int]
    """Trained tokens by the source of their version."""


class FindingJson(Document):
    """One problem found in the run."""

    rule: str
    """Name of the finding."""
    severity: Severity
    """Severity of the finding."""
    title: str
    """The finding in a few words."""
    sentence: str
    """The finding with its evidence, in words."""
    remedy: str
    """The recommended fix."""
    cost_gpu_s: Figure
    """GPU-seconds lost to the problem; null if the cost cannot be computed."""
    evidence: Mapping[str, Evidence]
    """Values behind the finding, with their units in their names."""
    start_ns: int | None
    """Start of the interval of the evidence, in UTC epoch nanoseconds; null if it has none."""
    end_ns: int | None
    """End of the interval of the evidence, in UTC epoch nanoseconds; null if it has none."""


class AnalysisDocument(Document):
    """Output of `rlscope analyze --json`: the whole analysis of one run."""

    model_config = ConfigDict(title="rlscope analyze --json")

    schema_version: Literal[1]
    """Version of this contract."""
    run: RunJson
    """The run."""
    verdict: VerdictJson
    """The bottleneck and the next actions."""
    throughput: ThroughputJson
    """Response tokens per second."""
    ledger: LedgerJson
    """GPU time by state."""
    staleness: StalenessJson
    """Staleness of the trained tokens."""
    latency: LatencyJson
    """The fitted time of a decode pass."""
    recommendation: RecommendationJson
    """The recommended layout."""
    actions: tuple[ActionJson, ...]
    """All actions that gain 5% or more, in the recommended order; empty if the model could not be fitted."""
    time_to_finish: TimeToFinishJson
    """Duration of the rest of the run."""
    sensitivity: tuple[SensitivityJson, ...] | None
    """Throughput change per 1% of each quantity, the largest first; null if the model could not be fitted."""
    model: ModelJson
    """Further results of the model."""
    findings: tuple[FindingJson, ...]
    """Problems found, the most expensive first."""
    alerts: tuple[AlertJson, ...]
    """Periods in which a built-in alert rule fired, by start time."""
    data_quality: DataQualityJson
    """Gaps in the data."""


def as_document(analysis: AnalysisResult) -> dict[str, Json]:
    """Return the whole analysis, ready for `json.dumps(..., allow_nan=False)`."""
    return analysis_document(analysis).as_dict()


def analysis_document(analysis: AnalysisResult) -> AnalysisDocument:
    """Return the whole analysis."""
    model = analysis.model
    return AnalysisDocument(
        schema_version=SCHEMA_VERSION,
        run=_run(analysis.run, devices_of(analysis.answers.get("worker_devices"))),
        verdict=_verdict(analysis),
        throughput=throughput_json(analysis.throughput, model),
        ledger=_ledger(analysis.ledger),
        staleness=_staleness(analysis.staleness),
        latency=latency_json(model),
        recommendation=recommendation_json(model, analysis.run),
        actions=()
        if isinstance(model, NoModelResult)
        else tuple(_action(each, analysis) for each in model.ranking.actions),
        time_to_finish=time_to_finish_json(model),
        sensitivity=None if isinstance(model, NoModelResult) else sensitivities_json(model.sensitivities),
        model=model_json(model),
        findings=tuple(
            _finding(finding, verdict_words.actions_of(analysis), analysis.run.settings.get("framework"))
            for finding in analysis.findings
        ),
        alerts=tuple(AlertJson.read(alert) for alert in analysis.alerts),
        data_quality=DataQualityJson.read(analysis.data_quality),
    )


def _run(run: RunFacts, devices: Mapping[str, str]) -> RunJson:
    return RunJson(
        run_id=run.run_id,
        started_ns=run.started_ns,
        duration_s=run.duration_s,
        total_gpus=run.total_gpus,
        trainer_gpus=run.trainer_gpus,
        sampler_gpus=run.sampler_gpus,
        colocated_gpus=run.colocated_gpus,
        steps=run.steps,
        samples_trained=run.samples_trained,
        tokens_trained=run.tokens_trained,
        max_staleness=run.max_staleness,
        window=None if run.window is None else _window(run.window, run.window_reason),
        window_reason=run.window_reason,
        settings={name: plain(value) for name, value in flattened(run.settings).items()},
        devices=devices,
    )


def _window(window: SteadyWindow, reason: str) -> WindowJson:
    return WindowJson(
        start_ns=window.start_ns,
        end_ns=window.end_ns,
        first_step=window.first_step,
        last_step=window.last_step,
        reason=reason,
    )


def _verdict(analysis: AnalysisResult) -> VerdictJson:
    verdict, steady_tokens_per_s = analysis.verdict, analysis.throughput.steady_tokens_per_s
    return VerdictJson(
        bottleneck=verdict.bottleneck,
        cause=verdict.cause,
        tied_with=verdict.tied_with,
        alarm=verdict_words.alarm(analysis),
        headline=verdict_words.headline(analysis),
        why=verdict_words.why(analysis),
        next=verdict_words.next_step(analysis),
        next_actions=tuple(verdict_words.then_steps(analysis)),
        unknown_reason=verdict.unknown_reason,
        losses=tuple(_loss(loss, steady_tokens_per_s) for loss in verdict.losses),
        start_ns=verdict.start_ns,
        end_ns=verdict.end_ns,
    )


def _loss(loss: Loss, steady_tokens_per_s: float | None) -> LossJson:
    gain = loss.gain_ratio
    return LossJson(
        cause=loss.cause,
        gpu_s=loss.gpu_s,
        side_share_ratio=loss.side_share_ratio,
        **dict(gain_json(gain)),
        recoverable_tokens_per_s=(
            None if gain is None or steady_tokens_per_s is None else gain.value * steady_tokens_per_s
        ),
    )


def _action(action: Action, analysis: AnalysisResult) -> ActionJson:
    steady_tokens_per_s, staleness = analysis.throughput.steady_tokens_per_s, action.staleness
    rate = None if steady_tokens_per_s is None else steady_tokens_per_s * (1.0 + action.gain_ratio.value)
    own = verdict_words.own_staleness(analysis)
    ages = action_words.ages_of(action, own)
    return ActionJson(
        kind=action.kind,
        target=action.what,
        cause=action.cause,
        setting=action_words.setting_of(action, analysis.run),
        from_=_setting(action.before),
        to=_setting(action.after),
        tokens_per_s=rate,
        **dict(gain_json(action.gain_ratio)),
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


def _setting(setting: Layout | float | None) -> int | float | LayoutJson | None:
    return layout_json(setting) if isinstance(setting, Layout) else setting


def _ledger(ledger: Ledger) -> LedgerJson:
    states = tuple(
        LedgerStateJson(
            role=state.role,
            state=state.state,
            reason=state.reason,
            gpu_s=state.gpu_s,
            gpu_ns=state.gpu_ns,
            share_ratio=state.share_ratio,
            gpu_idle_ratio=state.gpu_idle_ratio,
            underfilled_gpu_s=None if state.underfilled_gpu_ns is None else state.underfilled_gpu_ns / 1e9,
            underfilled_gpu_ns=state.underfilled_gpu_ns,
        )
        for state in ledger.states
    )
    return LedgerJson(
        total_gpu_s=ledger.total_gpu_s,
        total_gpu_ns=ledger.total_gpu_ns,
        states=states,
        unrecorded=tuple(UnrecordedTimeJson.read(each) for each in ledger.unrecorded),
    )


def _staleness(staleness: Staleness) -> StalenessJson:
    tokens, samples = staleness.tokens, staleness.samples
    return StalenessJson(
        tokens=None if tokens is None else _token_staleness(tokens),
        samples=None if samples is None else SampleStalenessJson.read(samples),
        in_flight_mean=staleness.in_flight_mean,
        in_queue_mean=staleness.in_queue_mean,
        over_cap_tokens=staleness.over_cap_tokens,
        version_source=staleness.version_source_tokens,
    )


def _token_staleness(tokens: TokenStaleness) -> TokenStalenessJson:
    return TokenStalenessJson(
        mean=tokens.mean,
        p50=tokens.p50,
        p95=tokens.p95,
        p99=tokens.p99,
        max=tokens.max,
        histogram=tuple(StalenessCountJson(staleness=age, tokens=count) for age, count in tokens.histogram),
    )


def _finding(finding: Finding, ranked: Sequence[Action], framework: object) -> FindingJson:
    return FindingJson(
        rule=finding.rule,
        severity=finding.severity,
        title=findings.title(finding),
        sentence=findings.sentence(finding),
        remedy=findings.remedy(finding, ranked, framework),
        cost_gpu_s=finding.cost_gpu_s,
        evidence=finding.evidence,
        start_ns=finding.start_ns,
        end_ns=finding.end_ns,
    )
