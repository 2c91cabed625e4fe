"""What an analysis says: the facts that the terminal, the JSON and the page all render. No computing, no wording.

The parts, from the outside in: what was asked of it (`Constraints`), what alert rules and findings say (`Alert`,
`Finding`), who ran and how long (`RunFacts`), the verdict, the rates, the ledger, the staleness, and the whole.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

import polars as pl

from rlscope.analysis.data_quality import DataQuality

if TYPE_CHECKING:
    from rlscope.model.forecast.layouts import Spread
    from rlscope.model.forecast.result import ModelResult, NoModelResult


@dataclass(frozen=True, slots=True)
class Constraints:
    """What the user asks of a recommendation besides what run.json says."""

    most_staleness: int | None = None
    """Cap on the staleness of samples, in versions; None: the run's own."""
    gpus_per_node: int = 1
    """Above 1: only whole nodes are moved."""
    also: tuple[Path, ...] = ()
    """Folders of other runs of the same model, which say how training scales."""


NO_CONSTRAINTS: Final = Constraints()

Severity = Literal["info", "warning", "critical"]
SEVERITIES: Final[tuple[Severity, ...]] = ("info", "warning", "critical")
"""From the lowest, which only informs, to the highest, which must wake somebody."""


@dataclass(frozen=True, slots=True)
class Alert:
    """One stretch of time in which one rule fires."""

    rule: str
    severity: Severity
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
    cost_gpu_s: float | None
    """GPU-seconds lost to it up to its last tick; None where the metric has no price."""
    held_since_ns: int = 0
    """The first tick at which the condition held; start_ns less what the rule waits `for`."""
    worst_value: float | None = None
    """The value furthest beyond the threshold while it fired."""
    evidence: int = 0
    """What the value was counted from when the condition last held, in the metric's unit of evidence."""
    judged_over_s: float | None = None
    """The length of the run after warm-up, where it is shorter than the rule's window and was judged once, as a whole:
    start_ns and held_since_ns are then where it begins. None for a rule that was judged at its ticks."""

    @property
    def fingerprint(self) -> str:
        """16 hex digits that stay the same for a rule and its labels, whatever the value and the time."""
        identity = json.dumps([self.rule, sorted(self.labels.items())])
        return hashlib.sha256(identity.encode()).hexdigest()[:16]


def at_least(severity: Severity, floor: Severity) -> bool:
    """Whether a severity is another one or higher."""
    return SEVERITIES.index(severity) >= SEVERITIES.index(floor)


EvidenceValue = int | float | str | None


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing found wrong with a run."""

    rule: str
    """The rule's name: the name of its module."""
    severity: Severity
    cost_gpu_s: float | None
    """GPU-seconds that it cost; None when it cannot be priced."""
    evidence: Mapping[str, EvidenceValue]
    """Numbers that the sentence is made of, each with its unit in its name."""
    start_ns: int | None
    """Start of the interval that the evidence covers, UTC epoch; None when it has no interval."""
    end_ns: int | None


Bottleneck = Literal[
    "samplers",
    "trainers",
    "lockstep",
    "staleness_cap",
    "weight_updates",
    "environment",
    "checkpoints",
    "balanced",
    "unknown",
]


@dataclass(frozen=True, slots=True)
class SteadyWindow:
    """The last stable stretch of the run: what steady rates and the verdict are taken over."""

    start_ns: int
    end_ns: int
    first_step: int
    last_step: int


@dataclass(frozen=True, slots=True)
class RunFacts:
    """Who ran, how long, and how much came of it."""

    run_id: str
    started_ns: int
    duration_s: float
    n_gpus: int
    trainer_gpus: int
    sampler_gpus: int
    colocated_gpus: int
    steps: int
    samples_trained: int
    tokens_trained: int | None
    """Response tokens trained, counted once per use; None if more than 5% of the trained samples were not recorded."""
    max_staleness: int | None
    """The cap in the run's config; None when it states none."""
    window: SteadyWindow | None
    window_reason: str
    """Why the window is what it is, or why there is none."""
    gpu_hour_price: float | None = None
    """What a GPU costs for an hour, above 0; None when the run's config does not say."""
    currency: str | None = None
    settings: Mapping[str, object] = field(default_factory=dict[str, object])
    """The config of run.json as it was given: any keys, any values."""
    total_steps: int | None = None
    """The training steps that the run is planned to make; None when its config does not say."""


@dataclass(frozen=True, slots=True)
class Loss:
    """GPU-seconds lost to one cause, in the window of the verdict."""

    cause: Bottleneck
    gpu_s: float
    side_share_ratio: float
    """gpu_s over the GPU-seconds of the side that lost them, 0..1."""
    gain_ratio: "Spread | None" = None
    """Of trained tokens per second over today's, less 1, were the cause gone, modelled; None where the model does not
    say."""
    dropped_gpu_s: float | None = None
    """Of gpu_s, generation of samples that were dropped; None for a cause that drops none."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The one word, and the losses it was chosen from: by what their removal would bring, else by GPU-seconds."""

    bottleneck: Bottleneck
    losses: tuple[Loss, ...]
    unknown_reason: str | None
    """Set when the bottleneck is unknown: what is missing."""
    start_ns: int
    end_ns: int
    tied_with: tuple[Bottleneck, ...] = ()
    """Other causes that cost as much, as far as can be told."""
    unrecorded_side: Literal["trainers", "samplers"] | None = None
    """Set when the bottleneck is unknown because most of the GPU time of this side is in no recorded state."""

    @property
    def cause(self) -> Bottleneck | None:
        """The bottleneck where it is a cause; None where the run is balanced, or nothing is known."""
        return None if self.bottleneck in ("balanced", "unknown") else self.bottleneck


@dataclass(frozen=True, slots=True)
class Throughput:
    """Response tokens per second, measured."""

    achieved_tokens_per_s: float | None
    """Trained throughput over the whole run."""
    steady_tokens_per_s: float | None
    """Trained throughput over the window; None without one."""
    generated_tokens_per_s: float | None
    """Generated throughput over the whole run: tokens sampled, trained on or not."""
    effective_tokens_per_s: float | None = None
    """Effective throughput over the whole run: the trained one times the effective sample size over its tokens; None
    where no importance ratios were recorded."""
    counted_tokens: int | None = None
    """Prompt and response tokens of the training steps, where no delivery was recorded: the trained rates then count
    these. None where they count the response tokens of deliveries."""


@dataclass(frozen=True, slots=True)
class LedgerState:
    """One line of the ledger."""

    role: str
    state: str
    reason: str | None
    gpu_ns: int
    """GPU-nanoseconds, exact."""
    share_ratio: float
    """Of the role's GPU-seconds, 0..1."""
    gpu_idle_ratio: float | None
    """Share of this state in which the GPU ran no kernel, from gpu_samples; None where there are none."""
    underfilled_gpu_ns: int | None = None
    """Of gpu_ns, what fuller batches would have saved, by the fitted curve: the part of `decoding` that is not
    efficient. None for every other state, and where the model says nothing."""

    @property
    def gpu_s(self) -> float:
        """GPU-seconds."""
        return self.gpu_ns / 1e9


@dataclass(frozen=True, slots=True)
class UnrecordedTime:
    """A part of the run in which a worker that has GPUs was not recorded: before its start and after its end."""

    worker_id: str
    before_s: float
    after_s: float
    gpu_s: float
    """GPU-seconds of both; in no state, and not in the ledger."""


@dataclass(frozen=True, slots=True)
class Ledger:
    """Every GPU-second of every worker in exactly one state; the states' sum is total_gpu_ns to the nanosecond."""

    total_gpu_ns: int
    states: tuple[LedgerState, ...]
    """Ordered by role, then by gpu_ns, largest first."""
    unrecorded: tuple[UnrecordedTime, ...] = ()
    """Workers that were not recorded for 5% of the run or more, the longest first."""

    @property
    def total_gpu_s(self) -> float:
        """GPU-seconds of all workers between their start and their end."""
        return self.total_gpu_ns / 1e9


@dataclass(frozen=True, slots=True)
class TokenStaleness:
    """Token-weighted staleness, in versions, of the response tokens that were trained on."""

    mean: float
    p50: int
    p95: int
    p99: int
    max: int
    histogram: tuple[tuple[int, int], ...]
    """(staleness, tokens), by staleness."""


@dataclass(frozen=True, slots=True)
class SampleStaleness:
    """Staleness of each trained sample by its oldest token."""

    mean: float
    p95: int
    max: int


@dataclass(frozen=True, slots=True)
class Staleness:
    """How old the tokens were when they were trained on; the parts are None when nothing was trained."""

    tokens: TokenStaleness | None
    samples: SampleStaleness | None
    in_flight_mean: float | None
    """Versions published between a token and the end of its sample, mean over tokens."""
    in_queue_mean: float | None
    """Versions published between the end of the sample and its gradient step, mean over tokens."""
    over_cap_tokens: int | None
    """Tokens trained beyond max_staleness; None when the run states no cap."""
    version_source_tokens: Mapping[str, int]
    """Trained tokens by where their version comes from."""


def _not_asked() -> "NoModelResult":
    # The model is slow to import, and who checks or watches a run needs these facts without it.
    from rlscope.model.forecast.result import NOT_ASKED

    return NOT_ASKED


@dataclass(frozen=True, slots=True)
class AnalysisResult:
    """Everything that an analysis computed of one run."""

    run: RunFacts
    verdict: Verdict
    throughput: Throughput
    ledger: Ledger
    staleness: Staleness
    findings: tuple[Finding, ...]
    """The most expensive first."""
    data_quality: DataQuality
    answers: Mapping[str, pl.DataFrame] = field(repr=False)
    """The frame of each query that the page draws, by the query's name; columns are in the query's header."""
    model: "ModelResult | NoModelResult" = field(default_factory=_not_asked, repr=False)
    """What the run should have done, and the recommended layout; or why there is no model of the run."""
    alerts: tuple[Alert, ...] = ()
    """The stretches in which a built-in alert rule fired, in the order in which they began."""

    @property
    def hides_samplers(self) -> bool:
        """Whether no file shows what samplers wait for: slow ones then look like ones in lockstep with the trainers."""
        passes = self.answers.get("pass_latency")
        shows_waits = any(each.role == "sampler" and each.reason is not None for each in self.ledger.states)
        return self.data_quality.imported is not None and not shows_waits and (passes is None or passes.is_empty())
