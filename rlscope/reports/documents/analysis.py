"""The analysis as a JSON document: the facts of the run, with the words of the report beside them."""

from dataclasses import dataclass

from rlscope.analysis.data_quality import DataQuality
from rlscope.analysis.learning import Learning
from rlscope.analysis.result import Alert, AnalysisResult, Ledger, RunFacts, Staleness, Verdict
from rlscope.analysis.shifts import RunEvent
from rlscope.document import Document, extended
from rlscope.model.causes import LossCause
from rlscope.model.estimate import Estimate
from rlscope.model.forecast.actions import Action, ActionKind, ActionWhat
from rlscope.model.forecast.result import ModelResult, TimeToFinish
from rlscope.model.step_bounds import StepBound, StepBounds, StepPhases
from rlscope.model.system import Layout
from rlscope.reports.documents.model import (
    Latency,
    ModelDetails,
    ModeledThroughput,
    RankedLayouts,
    ToldPrice,
    latency,
    model_details,
    modeled_throughput,
    ranked_layouts,
    told_price,
)
from rlscope.reports.text import actions as action_words
from rlscope.reports.text import step_bounds
from rlscope.reports.text import verdict as verdict_words
from rlscope.reports.text.actions import Cost, million_gpu_s_after
from rlscope.reports.text.findings import ToldFinding, told
from rlscope.reports.text.learning import learning_sentences
from rlscope.reports.text.shifts import event_sentence


@dataclass(frozen=True, slots=True, kw_only=True)
class ToldVerdict(Verdict):
    """The bottleneck and the losses that it was chosen from."""

    alarm: str | None
    """A problem that makes the run worthless at any throughput; None if there is none."""
    headline: str
    """The verdict in one short sentence."""
    why: str
    """The evidence for the verdict."""
    next: str
    """The first action and its gain."""


@dataclass(frozen=True, slots=True)
class ToldAction:
    """One action by itself, with its gain and its cost."""

    kind: ActionKind
    """change: a setting that is at least 90% likely to gain 5% or more. probe: a less certain setting worth a short
    test, or one with a high price. fresher: a lower limit that keeps the throughput, with fewer dropped tokens or
    fresher samples. cheaper: fewer GPUs that keep the throughput. fix: work on code or machines. The gain of a fix
    assumes that its whole cost is removed, or that one side becomes 10% faster."""
    target: ActionWhat
    """The quantity that the action changes."""
    cause: LossCause
    """The cause of lost throughput that the action addresses, in the terms of the verdict."""
    setting: str | None
    """Name of the setting in the run's framework or in run.json; None if no name is known."""
    before: Layout | float | None
    """Current value of the setting; None if it is unset."""
    after: Layout | float | None
    """New value of the setting; None if it is removed."""
    in_flight_limit: int | None
    """Limit on samples in flight to set with it; without this limit the queue would grow for as long as the run lasts.
    None if the action needs none."""
    in_flight_setting: str | None
    """Name of that limit in the run's framework or in run.json; None without a limit or a known name."""
    tokens_per_s: float | None
    """Trained tokens per second after the action: the measured steady rate times 1 plus `gain_ratio`."""
    cost_per_million_tokens: float | None
    """Price of a million trained tokens after the action, for all GPUs of the run, in the run's currency; None for a
    fix, and if the run has no price or no steady rate."""
    gain_ratio: Estimate
    """Trained tokens per second over the current rate, less 1."""
    probability: float
    """Probability, 0 to 1, that the action gains 5% or more."""
    price_before: ToldPrice
    """Price of the current layout."""
    price_after: ToldPrice
    """Price after the action, as modeled."""
    effective_gain_ratio: float | None
    """Gain in trained tokens per second times the effective sample size at the staleness before and after, less 1; None
    unless importance ratios were recorded at three or more staleness values."""
    cost: Cost
    """Effort of the action: a restart of the run, a restart of the engines, or engineering."""
    headline: str
    """The action in words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToldBound(StepBound):
    """Bound on the throughput after one change, from the phases of a step."""

    headline: str
    """The change and its bound in words."""
    assumption: str
    """Assumption behind the bound."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToldBounds(StepBounds):
    """Phases of a step, and bounds on the throughput after a change."""

    bounds: tuple[ToldBound, ...]
    """Changes that can gain 1% or more, those that need nothing else first, then by the most that they gain."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToldEvent(RunEvent):
    """Quantities that changed at the same time, for good or for some steps."""

    headline: str
    """The event in words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToldLearning(Learning):
    """Rewards of the samples of one step, compared."""

    sentences: tuple[str, ...]
    """The differences in words."""


@dataclass(frozen=True, slots=True)
class AnalysisDocument(Document):
    """Output of `rlscope analyze --json`: the whole analysis of one run."""

    run: RunFacts
    """The run."""
    verdict: ToldVerdict
    """The bottleneck and the next actions."""
    throughput: ModeledThroughput
    """Response tokens per second."""
    ledger: Ledger
    """GPU time by state."""
    staleness: Staleness
    """Staleness of the trained tokens."""
    latency: Latency | None
    """The fitted time of a decode pass; None if the model could not be fitted."""
    recommendation: RankedLayouts
    """The recommended layout."""
    actions: tuple[ToldAction, ...]
    """All actions that gain 5% or more, in the recommended order; empty if the model could not be fitted."""
    time_to_finish: TimeToFinish | None
    """Duration of the rest of the run; None if the model could not be fitted, or if the run does not state its number
    of steps or has finished them."""
    model: ModelDetails | None
    """Further results of the model; None if it could not be fitted."""
    step_bounds: ToldBounds | None
    """Bounds from the phases of a step, for a log that shows the trainers but not the engines; None for other runs."""
    events: tuple[ToldEvent, ...]
    """Lasting changes during the run, in order."""
    learning: ToldLearning | None
    """Rewards of the samples of one step compared; None if no sample has a reward."""
    findings: tuple[ToldFinding, ...]
    """Problems found, the most expensive first."""
    alerts: tuple[Alert, ...]
    """Periods in which a built-in alert rule fired, by start time."""
    data_quality: DataQuality
    """Gaps in the data."""


def analysis_document(analysis: AnalysisResult) -> AnalysisDocument:
    """Return the whole analysis."""
    ranked, model, started_ns = verdict_words.actions_of(analysis), analysis.modeled, analysis.run.started_ns
    bounds, learning = analysis.step_bounds, analysis.learning
    told_bounds = () if bounds is None else tuple(_bound(each, bounds.phases) for each in bounds.bounds)
    return extended(
        AnalysisDocument,
        analysis,
        verdict=extended(
            ToldVerdict,
            analysis.verdict,
            alarm=verdict_words.alarm(analysis),
            headline=verdict_words.headline(analysis),
            why=verdict_words.why(analysis),
            next=verdict_words.next_step(analysis),
        ),
        throughput=modeled_throughput(analysis.throughput, analysis.model),
        latency=model and latency(model),
        recommendation=ranked_layouts(analysis.model),
        actions=tuple(_action(each, analysis, model) for each in ranked) if model else (),
        time_to_finish=model and model.finish,
        model=model and model_details(model),
        step_bounds=bounds and extended(ToldBounds, bounds, bounds=told_bounds),
        events=tuple(extended(ToldEvent, each, headline=event_sentence(each, started_ns)) for each in analysis.events),
        learning=learning and extended(ToldLearning, learning, sentences=tuple(learning_sentences(learning))),
        findings=tuple(told(each, analysis, ranked) for each in analysis.findings),
    )


def _bound(bound: StepBound, phases: StepPhases) -> ToldBound:
    return extended(
        ToldBound,
        bound,
        headline=f"{step_bounds.change_words(bound, phases)}: {step_bounds.range_words(bound)}",
        assumption=step_bounds.assumption(bound, phases),
    )


def _action(action: Action, analysis: AnalysisResult, model: ModelResult) -> ToldAction:
    rate, steps_per_version = analysis.throughput.steady_tokens_per_s, model.calibration.steps_per_version
    layout, gpu_s, price = model.calibration.layout, million_gpu_s_after(action, analysis), analysis.run.gpu_hour_price
    return extended(
        ToldAction,
        action,
        target=action.what,
        setting=action_words.setting_of(action.what, analysis.run),
        in_flight_setting=action_words.limit_setting_of(action, analysis.run),
        tokens_per_s=None if rate is None else rate * (1.0 + action.gain_ratio.value),
        cost_per_million_tokens=None if gpu_s is None or price is None else gpu_s / 3600.0 * price,
        probability=action.worthwhile_probability,
        price_before=told_price(action.price_before, layout, steps_per_version),
        price_after=told_price(
            action.price,
            action.after if isinstance(action.after, Layout) else layout,
            action.steps_per_version(steps_per_version),
        ),
        effective_gain_ratio=action_words.effective_gain_ratio(action, analysis),
        cost=action_words.cost_of(action),
        headline=action_words.what_to_do(action),
    )
