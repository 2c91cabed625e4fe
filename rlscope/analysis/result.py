"""Result of an analysis: the facts that the terminal, the JSON and the report render. No computation, no wording.

The order is: constraints of the user (`Constraints`), firings and problems (`Alert`, `Finding`), facts of the run
(`RunFacts`), verdict, rates, ledger, staleness, and the whole result.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

import polars as pl

from rlscope.analysis.data_quality import DataQuality
from rlscope.analysis.learning import Learning
from rlscope.analysis.shifts import RunEvent
from rlscope.document import computed_field
from rlscope.input_file import is_integer
from rlscope.model.causes import Bottleneck, Cause, LossCause
from rlscope.model.estimate import Estimate
from rlscope.model.step_bounds import StepBounds

if TYPE_CHECKING:
    from rlscope.model.forecast.result import ModelResult, NoModelResult


@dataclass(frozen=True, slots=True)
class Constraints:
    """Constraints of the user on a recommendation, in addition to run.json."""

    most_staleness: int | None = None
    """Cap on the staleness of samples, in versions. None uses the run's cap."""
    gpus_per_node: int = 1
    """If above 1, only whole nodes are moved."""
    also: tuple[Path, ...] = ()
    """Folders of other runs of the same model, which show how training scales."""


NO_CONSTRAINTS: Final = Constraints()

Severity = Literal["info", "warning", "critical"]
SEVERITIES: Final[tuple[Severity, ...]] = ("info", "warning", "critical")
"""Severities from the lowest, which only informs, to the highest, which must wake somebody."""


@dataclass(frozen=True, slots=True)
class Alert:
    """One interval in which one rule fires."""

    rule: str
    """Name of the rule."""
    severity: Severity
    """Severity of the rule."""
    labels: Mapping[str, str]
    """The labels of the rule, `severity` among them."""
    annotations: Mapping[str, str]
    """The texts of the rule, with values filled in."""
    value: float | None
    """The metric when the condition last held, in the metric's unit."""
    start_ns: int
    """The tick at which it began to fire, UTC epoch."""
    end_ns: int | None
    """The tick at which it was resolved; None while it fires."""
    held_since_ns: int = 0
    """The first tick at which the condition held: start_ns minus the rule's `for`."""
    worst_value: float | None = None
    """The value furthest beyond the threshold while it fired."""
    evidence: int = 0
    """Amount of data behind the value when the condition last held, in the metric's unit of evidence."""
    evaluated_over_s: float | None = None
    """Length of the run after warm-up, if it is shorter than the rule's window and was evaluated once as a whole;
    start_ns and held_since_ns are then its start. None for a rule that was evaluated at its ticks."""

    @computed_field
    @property
    def fingerprint(self) -> str:
        """16 hex digits that stay the same for a rule and its labels, whatever the value and the time."""
        identity = json.dumps([self.rule, sorted(self.labels.items())])
        return hashlib.sha256(identity.encode()).hexdigest()[:16]


def at_least(severity: Severity, floor: Severity) -> bool:
    """Return whether a severity is the floor or higher."""
    return SEVERITIES.index(severity) >= SEVERITIES.index(floor)


EvidenceValue = int | float | str | None


@dataclass(frozen=True, slots=True)
class Finding:
    """One problem of a run."""

    rule: str
    """The rule's name: the name of its module."""
    severity: Severity
    """Severity of the finding."""
    cost_gpu_s: float | None
    """GPU-seconds that it was seen in, not a forecast: without its cause, the run saves less if the other side sets the
    pace, and more if others wait, too. None if it has no price."""
    evidence: Mapping[str, EvidenceValue]
    """Numbers of the sentence, with units in their names."""
    start_ns: int | None
    """Start of the interval that the evidence covers, UTC epoch. None if it has no interval."""
    end_ns: int | None
    """End of the interval of the evidence, in UTC epoch nanoseconds; None if it has none."""


@dataclass(frozen=True, slots=True)
class SteadyWindow:
    """The last stable interval of the run, the basis of steady rates and the verdict."""

    start_ns: int
    """Start, in UTC epoch nanoseconds."""
    end_ns: int
    """End, in UTC epoch nanoseconds."""
    first_step: int
    """First optimizer step of the steady state."""
    last_step: int
    """Last optimizer step of the steady state."""
    lengths_drifted: bool = False
    """Whether earlier steps of equal step time are left out because response lengths drifted over them."""

    @property
    def is_inside(self) -> pl.Expr:
        """Whether a row, by its column `step`, is about a step of the steady state."""
        return pl.col("step").is_between(self.first_step, self.last_step)

    def per_s(self, tokens: int) -> float | None:
        """Tokens per second over the steady state; None if it has no length."""
        length_ns = self.end_ns - self.start_ns
        return tokens / (length_ns / 1e9) if length_ns > 0 else None


@dataclass(frozen=True, slots=True)
class RunFacts:
    """Workers, duration and output of a run."""

    run_id: str
    """Identifier of the run."""
    started_ns: int
    """Start of the run, in UTC epoch nanoseconds."""
    duration_s: float
    """Length of the run, in seconds."""
    total_gpus: int
    """Total number of GPUs, auxiliary ones included."""
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
    """Response tokens trained, counted once per use; None without deliveries, if no trained sample has a token, or if
    more than 5% of the trained samples were not recorded."""
    max_staleness: int | None
    """Cap in the run's config. None if it states none."""
    window: SteadyWindow | None
    """The steady state; None if there is none."""
    window_reason: str
    """Reason for the choice of the window, or for having none."""
    gpu_hour_price: float | None = None
    """Price of a GPU per hour, above 0. None if the run's config does not state it."""
    currency: str | None = None
    """Currency of the price."""
    devices: Mapping[str, str] = field(default_factory=dict[str, str])
    """Recorded GPU models, by role."""
    settings: Mapping[str, object] = field(default_factory=dict[str, object])
    """Config of run.json as written by the user, with any keys and values."""
    total_steps: int | None = None
    """Planned training steps of the run. None if its config does not state them."""
    auxiliary_gpus: int = 0
    """GPUs of judges and of reward, reference and critic models, which are in no layout."""

    @property
    def policy_gpus(self) -> int:
        """GPUs that sample or train."""
        return self.total_gpus - self.auxiliary_gpus

    def integer_setting(self, name: str) -> int | None:
        """A whole number of the run's config; None if it has none of this name."""
        value = self.settings.get(name)
        return value if is_integer(value) else None


@dataclass(frozen=True, slots=True)
class Loss:
    """GPU-seconds lost to one cause, in the window of the verdict."""

    cause: LossCause
    """The cause that the GPUs waited for."""
    gpu_s: float
    """Measured GPU-seconds lost."""
    side_share_ratio: float
    """gpu_s over the GPU-seconds of the side that lost them, 0..1."""
    gain_ratio: Estimate | None = None
    """Modeled relative change of trained tokens per second without the cause. None if the model does not say."""
    dropped_gpu_s: float | None = None
    """Part of gpu_s spent on generating dropped samples. None for a cause that drops none."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The bottleneck and the losses it was chosen from, in order of the gain without them, else of GPU-seconds."""

    bottleneck: Bottleneck
    """The bottleneck of the run."""
    losses: tuple[Loss, ...]
    """Cost of each cause, sorted by the gain from removing it, or by GPU time if there is no model."""
    unknown_reason: str | None
    """Missing data, if the bottleneck is unknown."""
    start_ns: int
    """Start of the verdict's time range, in UTC epoch nanoseconds."""
    end_ns: int
    """End of the verdict's time range, in UTC epoch nanoseconds."""
    tied_with: tuple[LossCause, ...] = ()
    """Other causes whose cost cannot be told from the bottleneck's."""
    unrecorded_side: Literal["trainers", "samplers"] | None = None
    """Side whose GPU time is mostly in no recorded state, if the bottleneck is unknown for this reason."""
    waits_for_auxiliary: bool = False
    """Whether trainers wait for samples while judges or reward models are nearly always busy, so that neither trainers
    nor samplers may be too slow."""

    @computed_field
    @property
    def cause(self) -> LossCause | None:
        """The bottleneck. None if the run is balanced or the bottleneck is unknown."""
        return None if self.bottleneck in (Cause.BALANCED, Cause.UNKNOWN) else self.bottleneck


@dataclass(frozen=True, slots=True)
class ReportedMetric:
    """A metric of the framework itself, in its own unit and by its own definition."""

    name: str
    """Name of the metric."""
    steps: int
    """Steps that it was reported for."""
    mean: float
    """Mean over these steps."""
    max: float
    """Maximum over these steps."""


@dataclass(frozen=True, slots=True)
class Throughput:
    """Measured response tokens per second."""

    achieved_tokens_per_s: float | None
    """Training throughput over the whole run."""
    steady_tokens_per_s: float | None
    """Training throughput over the window; None without one."""
    generated_tokens_per_s: float | None
    """Generated throughput over the whole run: tokens sampled, trained on or not. Without samples, those that the
    engines decoded."""
    effective_tokens_per_s: float | None = None
    """Effective throughput over the whole run: training throughput times the effective sample size per token. None if
    no importance ratios were recorded."""
    counted_tokens: int | None = None
    """Prompt and response tokens of the training steps, if no delivery was recorded; the trained rates then count
    these tokens. None if they count the response tokens of deliveries."""
    reported: tuple[ReportedMetric, ...] = ()
    """Tokens per second and total tokens as the framework of an imported run reports them. Nothing is computed from
    them."""


@dataclass(frozen=True, slots=True)
class LedgerState:
    """One line of the ledger."""

    role: str
    """Role of the workers."""
    state: str
    """Activity of the workers."""
    reason: str | None
    """Reason for the wait; None if the state needs no reason."""
    gpu_ns: int
    """GPU-nanoseconds, exact."""
    share_ratio: float
    """Share of the role's GPU-seconds, 0..1."""
    gpu_idle_ratio: float | None
    """Share of this state in which the GPU ran no kernel, from gpu_samples. None without GPU readings."""
    underfilled_gpu_ns: int | None = None
    """Part of gpu_ns that fuller batches would have saved, by the fitted curve: the inefficient part of `decoding`.
    None for all other states, and without a model."""

    @computed_field
    @property
    def gpu_s(self) -> float:
        """GPU-seconds in this state."""
        return self.gpu_ns / 1e9

    @computed_field
    @property
    def underfilled_gpu_s(self) -> float | None:
        """`underfilled_gpu_ns` in GPU-seconds."""
        return None if self.underfilled_gpu_ns is None else self.underfilled_gpu_ns / 1e9


@dataclass(frozen=True, slots=True)
class UnrecordedTime:
    """Time of the run in which a worker with GPUs was not recorded: before its start and after its end."""

    worker_id: str
    """The worker."""
    before_s: float
    """Seconds between the start of the run and the start of the worker."""
    after_s: float
    """Seconds between the end of the worker and the end of the run."""
    gpu_s: float
    """GPU-seconds of both parts. They are in no state and not in the ledger."""


@dataclass(frozen=True, slots=True)
class Ledger:
    """GPU time of every worker by state. The states sum to total_gpu_ns to the nanosecond."""

    total_gpu_ns: int
    """GPU-nanoseconds of all workers: exactly the sum of all states."""
    states: tuple[LedgerState, ...]
    """Ordered by role, then by gpu_ns, largest first."""
    unrecorded: tuple[UnrecordedTime, ...] = ()
    """Workers that were not recorded for 5% of the run or more, the longest first."""

    @computed_field
    @property
    def total_gpu_s(self) -> float:
        """GPU-seconds of all workers between their start and their end."""
        return self.total_gpu_ns / 1e9


@dataclass(frozen=True, slots=True)
class TokenStaleness:
    """Token-weighted staleness, in versions, of the response tokens that were trained on."""

    mean: float
    """Mean, in versions."""
    p50: int
    """Median, in versions."""
    p95: int
    """95th percentile, in versions."""
    p99: int
    """99th percentile, in versions."""
    max: int
    """Maximum, in versions."""
    histogram: tuple[tuple[int, int], ...]
    """(staleness, tokens), by staleness."""


@dataclass(frozen=True, slots=True)
class SampleStaleness:
    """Staleness of each trained sample by its oldest token."""

    mean: float
    """Mean, in versions."""
    p95: int
    """95th percentile, in versions."""
    max: int
    """Maximum, in versions."""


@dataclass(frozen=True, slots=True)
class Staleness:
    """Staleness of the tokens at the time of training. The parts are None if nothing was trained."""

    tokens: TokenStaleness | None
    """Staleness of tokens; None if nothing was trained."""
    samples: SampleStaleness | None
    """Staleness of samples; None if nothing was trained."""
    in_flight_mean: float | None
    """Versions published between a token and the end of its sample, mean over tokens."""
    in_queue_mean: float | None
    """Versions published between the end of the sample and its gradient step, mean over tokens."""
    over_cap_tokens: int | None
    """Tokens trained beyond max_staleness. None if the run states no cap."""
    version_source_tokens: Mapping[str, int]
    """Trained tokens by the source of their version."""
    reported: tuple[ReportedMetric, ...] = ()
    """Staleness as the framework of an imported run reports it. If it is always 0, steps are synchronous; that
    alone is inferred from it."""


def _not_asked() -> "NoModelResult":
    # The model is slow to import, and `check` and `watch` need these facts without it.
    from rlscope.model.forecast.result import NOT_ASKED

    return NOT_ASKED


def hides_samplers(quality: DataQuality, ledger: Ledger, answers: Mapping[str, pl.DataFrame]) -> bool:
    """Whether no file shows what samplers wait for. Slow samplers then look as if in lockstep with the trainers."""
    if quality.imported is None or quality.sampled_engines:
        # An engine that is polled shows when it has no request.
        return False
    shows_waits = any(each.role == "sampler" and each.reason is not None for each in ledger.states)
    return not shows_waits and answers["pass_latency"].is_empty()


@dataclass(frozen=True, slots=True)
class AnalysisResult:
    """Complete result of the analysis of one run."""

    run: RunFacts
    verdict: Verdict
    throughput: Throughput
    ledger: Ledger
    staleness: Staleness
    findings: tuple[Finding, ...]
    """Problems, the most expensive first."""
    data_quality: DataQuality
    answers: Mapping[str, pl.DataFrame] = field(repr=False)
    """Frame of each query that the report draws, by the query's name. The query's header explains the columns."""
    model: "ModelResult | NoModelResult" = field(default_factory=_not_asked, repr=False)
    """Prediction of the run and the recommended layout, or the reason that there is no model."""
    alerts: tuple[Alert, ...] = ()
    """Intervals in which a built-in alert rule fired, in the order of their start."""
    events: tuple[RunEvent, ...] = ()
    """Lasting changes during the run, in order."""
    learning: Learning | None = None
    """Rewards of the samples of one step compared; None if no sample has a reward."""
    step_bounds: StepBounds | None = None
    """Bounds on the throughput after a change, if the log shows the trainers' phases but not the engines; else None."""

    @property
    def modeled(self) -> "ModelResult | None":
        """The result of the model; None if there is no model."""
        from rlscope.model.forecast.result import ModelResult

        return self.model if isinstance(self.model, ModelResult) else None

    @property
    def hides_samplers(self) -> bool:
        """Whether no file shows what samplers wait for."""
        return hides_samplers(self.data_quality, self.ledger, self.answers)
