"""The analysis as a JSON document: the facts of the run here, the results of the model in `model.py`.

Numbers are as measured, in the unit that their name ends in; what is not known is null, and NaN never appears.
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
    """The steady window: the last stretch of steps over which the run kept one pace."""

    start_ns: int
    """Start, in UTC epoch nanoseconds."""
    end_ns: int
    """End, in UTC epoch nanoseconds."""
    first_step: int
    """First optimizer step in it."""
    last_step: int
    """Last optimizer step in it."""
    reason: str
    """Why the window is this one."""


class RunJson(Document):
    """The run: its GPUs, its length, and how much it trained."""

    run_id: str
    """Identifier of the run."""
    started_ns: int
    """Start of the run, in UTC epoch nanoseconds."""
    duration_s: Figure
    """Length of the run, in seconds."""
    n_gpus: int
    """GPUs in all."""
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
    """Staleness cap of the run's config, in versions; null if it states none."""
    window: WindowJson | None
    """The steady window; null if there is none."""
    window_reason: str
    """Why the window is what it is, or why there is none."""
    settings: Mapping[str, str | int | float | bool | None]
    """The config of run.json: nested entries by dotted names, lists as text."""
    devices: Mapping[str, str]
    """GPU models by role, as far as recorded."""


class MeasuredLossJson(Document):
    """GPU time lost to one cause, in the window of the verdict."""

    cause: Bottleneck
    """What the GPUs waited for."""
    gpu_s: Figure
    """GPU-seconds lost, measured."""
    side_share_ratio: Figure
    """Share of the GPU time of the side that lost it, 0 to 1, measured."""


class LossJson(GainJson, MeasuredLossJson):
    """What one cause costs: GPU time as measured, and the throughput that its removal alone would bring, modelled."""

    recoverable_tokens_per_s: Figure
    """Trained tokens per second that its removal alone would add: the measured steady rate times `gain_ratio`; null
    where the model does not say."""


class VerdictJson(Document):
    """The bottleneck, and the losses that it was chosen from."""

    bottleneck: Bottleneck
    """What limits the run."""
    cause: Bottleneck | None
    """The bottleneck where it is a cause; null where the run is balanced, or nothing is known."""
    tied_with: tuple[Bottleneck, ...]
    """Other causes that cost as much, as far as can be told."""
    alarm: str | None
    """What makes the run worthless whatever it spends; null if nothing does."""
    headline: str
    """The verdict in one short sentence."""
    why: str
    """What the verdict is based on."""
    next: str
    """What to do first, and what it brings."""
    then: tuple[str, ...]
    """The next actions after the first, one sentence each."""
    unknown_reason: str | None
    """What is missing for a verdict; null if there is one."""
    losses: tuple[LossJson, ...]
    """What each cause costs: by what its removal would bring, the most first; without a model by GPU time."""
    start_ns: int
    """Start of the window of the verdict, in UTC epoch nanoseconds."""
    end_ns: int
    """End of the window of the verdict, in UTC epoch nanoseconds."""


Setting = Annotated[int | float, WithJsonSchema({"type": "number"})] | LayoutJson | None
"""A setting: a number or a layout."""


class ActionSettingJson(Document):
    """What to set."""

    kind: ActionKind
    """change: a setting, at least 90% likely to bring 5% or more. probe: a setting worth a short try, less sure. fix:
    work on code or machines; its gain is that of the whole cost removed, or of a side made 10% faster."""
    what: ActionWhat
    """What it changes."""
    cause: Cause
    """The cause of lost throughput that it is against, in the words of the verdict."""
    setting: str | None
    """Name of the setting in the run's framework, or in run.json; null where none is known."""
    from_: Setting = Field(serialization_alias="from")
    """The setting as it is; null where there is none."""
    to: Setting
    """The setting as it would be; null: removed."""
    tokens_per_s: Figure
    """Trained tokens per second with it: the measured steady rate times 1 plus `gain_ratio`."""


class ActionJson(GainJson, ActionSettingJson):
    """One thing to do, alone, with what it brings, what it costs and how to verify it."""

    probability: Figure
    """Probability, 0 to 1, that it brings 5% or more."""
    staleness_p95_before: int | None
    """95th percentile of the staleness of samples today, in versions, measured."""
    staleness_p95_after: int | None
    """The same with it, modelled; null where the queue would grow for ever."""
    staleness_p95_steps_before: Figure
    """95th percentile of the staleness of samples today, in optimizer steps; null where the action leaves a version as
    long as it is."""
    staleness_p95_steps_after: Figure
    """The same with it, modelled."""
    effective_gain_ratio: Figure
    """Gain of the rate times the effective sample size at the staleness before and after, less 1; null without
    importance ratios at three staleness values or more."""
    evidence: Grade | None
    """How far its decode batches are from those that the run measured."""
    verify: str
    """How to see that it holds."""
    cost: Cost
    """What it takes: a restart of the run, of the engines, or engineering."""
    headline: str
    """What to do, in words."""


class LedgerStateJson(Document):
    """The GPU time of one role in one state."""

    role: str
    """Role of the workers."""
    state: str
    """What they did."""
    reason: str | None
    """Why they waited; null if the state needs no reason."""
    gpu_s: float
    """GPU-seconds."""
    gpu_ns: int
    """The same in GPU-nanoseconds, exactly."""
    share_ratio: Figure
    """Share of the role's GPU time, 0 to 1."""
    gpu_idle_ratio: Figure
    """Share of this time, 0 to 1, in which the GPU ran no kernel; null without GPU samples."""
    underfilled_gpu_s: float | None
    """GPU-seconds of decoding that fuller batches would have saved; null for other states and without a model."""
    underfilled_gpu_ns: int | None
    """The same in GPU-nanoseconds, exactly."""


class UnrecordedTimeJson(Document):
    """A part of the run in which a worker was not recorded."""

    worker_id: str
    """The worker."""
    before_s: float
    """Seconds of the run before its start."""
    after_s: float
    """Seconds of the run after its end."""
    gpu_s: float
    """GPU-seconds of both, which are in no state."""


class LedgerJson(Document):
    """Every GPU-second of every worker, in exactly one state."""

    total_gpu_s: float
    """GPU-seconds of all workers between their start and their end."""
    total_gpu_ns: int
    """The same in GPU-nanoseconds: exactly the sum of all states."""
    states: tuple[LedgerStateJson, ...]
    """GPU time by role and state, in each role the longest first."""
    unrecorded: tuple[UnrecordedTimeJson, ...]
    """Workers with GPUs that were not recorded for 5% of the run or more, the longest first."""


class StalenessCountJson(Document):
    """Tokens of one staleness."""

    staleness: int
    """Staleness, in versions."""
    tokens: int
    """Trained tokens of that staleness."""


class TokenStalenessJson(Document):
    """Staleness of the response tokens that were trained on, weighted by tokens, in versions."""

    mean: Figure
    """Mean, in versions."""
    p50: int
    """Median, in versions."""
    p95: int
    """95th percentile, in versions."""
    p99: int
    """99th percentile, in versions."""
    max: int
    """Largest, in versions."""
    histogram: tuple[StalenessCountJson, ...]
    """Trained tokens by staleness."""


class SampleStalenessJson(Document):
    """Staleness of the samples that were trained on, each by its oldest token."""

    mean: Figure
    """Mean, in versions."""
    max: int
    """Largest, in versions."""


class StalenessJson(Document):
    """How stale the tokens were when they were trained on."""

    tokens: TokenStalenessJson | None
    """Staleness of tokens; null if nothing was trained."""
    samples: SampleStalenessJson | None
    """Staleness of samples; null if nothing was trained."""
    in_flight_mean: Figure
    """Mean number of versions published between a token and the end of its sample."""
    in_queue_mean: Figure
    """Mean number of versions published between the end of a sample and its gradient step."""
    over_cap_tokens: int | None
    """Tokens trained beyond the staleness cap; null if the run states no cap."""
    version_source: Mapping[str, int]
    """Trained tokens by where their version is known from."""


class FindingJson(Document):
    """One problem found in the run."""

    rule: str
    """Name of the finding."""
    severity: Severity
    """How bad it is."""
    title: str
    """The finding in a few words."""
    sentence: str
    """The finding with its evidence, in words."""
    remedy: str
    """What to do about it."""
    cost_gpu_s: Figure
    """GPU-seconds lost to it; null if that cannot be computed."""
    evidence: Mapping[str, Evidence]
    """What it was found by: values with their units in their names."""
    start_ns: int | None
    """Start of the interval of the evidence, in UTC epoch nanoseconds; null if it has none."""
    end_ns: int | None
    """End of the interval of the evidence, in UTC epoch nanoseconds; null if it has none."""


class AnalysisDocument(Document):
    """What `rlscope analyze --json` prints: the whole analysis of one run."""

    model_config = ConfigDict(title="rlscope analyze --json")

    schema_version: Literal[1]
    """Version of this contract."""
    run: RunJson
    """The run."""
    verdict: VerdictJson
    """The bottleneck, and what to do next."""
    throughput: ThroughputJson
    """Response tokens per second."""
    ledger: LedgerJson
    """Where the GPU time went."""
    staleness: StalenessJson
    """How stale the trained tokens were."""
    latency: LatencyJson
    """The fitted time of a decode pass."""
    recommendation: RecommendationJson
    """The recommended layout."""
    actions: tuple[ActionJson, ...]
    """Everything that brings 5% or more, in the order in which to do it; empty where the model does not say."""
    eta: TimeToFinishJson
    """How long the rest of the run takes."""
    sensitivity: tuple[SensitivityJson, ...] | None
    """Throughput change per 1% of each quantity, the largest first; null where the model could not be fitted."""
    model: ModelJson
    """What else the model says."""
    findings: tuple[FindingJson, ...]
    """Problems found, the most expensive first."""
    alerts: tuple[AlertJson, ...]
    """Stretches in which a built-in alert rule fired, by their start."""
    data_quality: DataQualityJson
    """What the analysis could not see."""


def as_document(analysis: AnalysisResult) -> dict[str, Json]:
    """The whole analysis, ready for `json.dumps(..., allow_nan=False)`."""
    return analysis_document(analysis).as_dict()


def analysis_document(analysis: AnalysisResult) -> AnalysisDocument:
    """The whole analysis."""
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
        eta=time_to_finish_json(model),
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
        n_gpus=run.n_gpus,
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
        then=tuple(verdict_words.then_steps(analysis)),
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
            None if gain is None or steady_tokens_per_s is None else gain.median * steady_tokens_per_s
        ),
    )


def _action(action: Action, analysis: AnalysisResult) -> ActionJson:
    steady_tokens_per_s, staleness = analysis.throughput.steady_tokens_per_s, action.staleness
    rate = None if steady_tokens_per_s is None else steady_tokens_per_s * (1.0 + action.gain_ratio.median)
    own = verdict_words.own_staleness(analysis)
    ages = action_words.ages_of(action, own)
    return ActionJson(
        kind=action.kind,
        what=action.what,
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
