"""Facts that the model reads from a run: one steady state of it, and the train steps of other runs. No fits."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Final

import numpy as np

from rlscope.document import LEFT_OUT
from rlscope.model.arrays import Counts, Flags, Reals
from rlscope.model.lengths import LengthLaw
from rlscope.model.policies import QueueOrder
from rlscope.model.training.scaling import RunSteps
from rlscope.model.warnings import ModelWarning

_OTHER_LENGTHS: Final = 1.25
"""Ratio of mean sample lengths, either way, beyond which two runs differ. Attention is about 10% of a step at usual
lengths, and grows with them: 25% longer samples cost some 2%, which two runs are assumed to differ by anyway."""


@dataclass(frozen=True, slots=True, eq=False)
class TrainerSteps:
    """Optimizer steps of the steady state, in order. Seconds are per trainer GPU, so they add up to the period."""

    period_s: Reals
    """Seconds from the end of the previous step to the end of this one."""
    train_s: Reals
    logprobs_s: Reals
    publish_s: Reals
    """Publications and transfers done by the trainers themselves."""
    other_s: Reals
    """Checkpoints, evaluations, rewards, and waits for other work than sampling."""
    wait_s: Reals
    """Waits for samples or for the staleness cap."""
    samples: Counts
    tokens: Counts
    """Prompt and response tokens processed."""
    response_tokens: Counts
    published: Counts
    """Versions published from the step: 0 or 1."""

    @property
    def per_version(self) -> float | None:
        """Mean steps from one publication to the next; None if none was published."""
        return steps_per_version(self.published)

    @property
    def trained(self) -> Flags:
        """Flags of the steps that record how many tokens they trained on, and for how long."""
        return (self.tokens > 0) & (self.train_s > 0.0)

    def of_training(self, gpus: int) -> RunSteps:
        """Tokens and seconds of the steps that trained; gpus: trainer GPUs."""
        trained = self.trained
        return RunSteps(gpus, self.tokens[trained].astype(np.float64), self.train_s[trained])


def steps_per_version(published: Counts) -> float | None:
    """Return the mean number of steps between publications.

    published: 1 for each step that published, in order, else 0.
    """
    places = np.flatnonzero(published)
    if not places.size:
        return None
    # Versions that began before the steady state or end after it are seen only in part.
    following = int(published[places[0] + 1 :].sum())
    return float(places[-1] - places[0]) / following if following else float(published.size / published.sum())


@dataclass(frozen=True, slots=True, eq=False)
class PassCosts:
    """Forward passes of all engines, grouped by batch size and by the fill of the KV cache."""

    engine: Counts
    """Engine number: 0, 1, ..."""
    running: Counts
    kv_tokens: Reals
    """Mean resident tokens over the passes; NaN if not recorded."""
    prefills: Flags
    in_update: Flags
    """Whether weights were moved to the engine, or loaded into it, while it generated."""
    rows: Counts
    """Number of measurements."""
    passes: Counts
    busy_s: Reals
    between_s: Reals
    """Seconds between passes inside the rows."""
    pass_p50_s: Reals
    """Median over rows of the row's mean seconds per pass."""
    decode_tokens: Counts
    prefill_tokens: Counts
    engine_names: tuple[str, ...] = ()
    """Names by engine number; empty if engines have no names."""


@dataclass(frozen=True, slots=True)
class Delivered:
    """Response tokens that left the queue in the steady state, once per delivery."""

    trained_tokens: int
    dropped_tokens: int
    """Tokens dropped as stale. How many depends on the layout."""
    filtered_tokens: int
    """Tokens filtered or abandoned: what a step gives up whatever the layout is."""


@dataclass(frozen=True, slots=True)
class PreemptionCounts:
    """Counts of requests that engines preempted because their KV cache was full."""

    preemptions: int
    recomputed_tokens: int | None
    """Tokens recomputed after preemptions; if updates drop the KV cache, tokens recomputed for updates are included.
    None if no more tokens were computed than the prompts hold: part of the prompts was then not computed, for example
    with a prefix cache."""


@dataclass(frozen=True, slots=True)
class SeenScheduling:
    """Rollout scheduling that the steady state shows. None: not shown."""

    queued_alone_ratio: float | None = None
    """Share of the samples finished before the last one of their group that entered the queue on their own."""
    delivery_s: float | None = None
    """Mean seconds from the last token of a group's last sample until the group was queued."""
    disorder_ratios: Mapping[QueueOrder, float | None] = field(default_factory=dict[QueueOrder, float | None])
    """By order: share of pairs of a taken sample and one left behind that the order would have taken the other way
    round."""
    untaken_high_samples: int | None = None
    """Number of samples between start and being taken by the trainers, exceeded for at most 1% of the time."""
    untrained_high_samples: int | None = None
    """Number of samples between start and the end of their step, exceeded for at most 1% of the time."""
    taken_on_arrival_ratio: float | None = None
    """Share of the taken samples that were queued while their batch was being taken, and then taken at once."""
    filtered_queued_ratio: float | None = None
    """Share of the filtered or abandoned tokens whose sample had been in the queue."""


@dataclass(frozen=True, slots=True)
class SeenLoad:
    """Mean loads and waits of the steady state. None: not recorded."""

    running_samples: float | None = None
    """Samples between first schedule and last token over all engines, excluding those outside the engines."""
    in_flight_samples: float | None = None
    """Samples between first schedule and leaving the queue."""
    queued_samples: float | None = None
    wait_samples_ratio: float | None = None
    """Share of the trainers' time, 0..1."""
    wait_staleness_cap_ratio: float | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Observed:
    """One steady state of a run."""

    start_ns: int
    end_ns: int
    trainer_gpus: int
    engines: int
    gpus_per_engine: int
    max_running: int | None
    """Setting for the maximum requests per engine; None if not recorded."""
    kv_capacity_tokens: int | None
    """KV capacity of one engine; None if not recorded."""
    device_name: str | None
    steps: TrainerSteps
    passes: PassCosts
    engine_state_s: Mapping[tuple[str, str | None], float]
    """Engine-seconds by ledger state and reason; they add up to engines * seconds."""
    lengths: LengthLaw
    began_samples: int
    """Samples that began in the steady state: those of `lengths`."""
    prompt_tokens: float
    """Mean context of those samples besides the response itself: the prompt, and what environments added to it."""
    group_size: int
    finished_samples: int
    """Samples whose last token lies in the steady state."""
    environment_samples: float
    """Mean number of running samples that are outside the engine."""
    delivered: Delivered
    apply_s: float | None
    """Seconds that an engine does not generate because of one version; None if none was applied."""
    update_delay_s: float | None
    """Mean seconds from the start of a publication to the end of its application; None if not recorded."""
    kv_kept: bool
    """Whether engines keep their KV cache over an update; True if not recorded."""
    staleness: tuple[tuple[int, int], ...]
    """(staleness, response tokens trained in the steady state), by staleness."""
    oldest_staleness: tuple[tuple[int, int], ...] = ()
    """(staleness of the oldest token, samples trained in the steady state), by staleness; empty if unknown."""
    environment_waits_s: tuple[float, ...] = ()
    """Equally likely waits of a sample outside the engine; empty if none was recorded."""
    between_turns_samples: float = 0.0
    """Part of environment_samples: those between two segments; each segment is a request of its own."""
    one_engine_groups_ratio: float | None = None
    """Share of groups whose samples all began on one engine; None if there is one engine, or no group."""
    prefetched_batches: float | None = None
    """Batches of optimizer steps that the trainers held when a step began, excluding its own and those of steps that
    share one with it; None if unknown."""
    batches_per_step: float = 1.0
    """Batches that trainers take, and train on, one after the other for an optimizer step; below 1 if several steps
    share one batch."""
    update_slowdown_s: float = 0.0
    """Seconds per version that an engine loses to passes slowed by updates that do not pause it; `passes` lack them."""
    preemption_counts: PreemptionCounts | None = None
    """None if engines do not count preemptions."""
    scheduling: SeenScheduling = SeenScheduling()
    load: SeenLoad = SeenLoad()

    @property
    def seconds(self) -> float:
        """Length of the steady state, in seconds."""
        return (self.end_ns - self.start_ns) / 1e9

    @property
    def trained_tokens_per_s(self) -> float:
        """Response tokens trained per second, over the steps of the steady state: sum over sum."""
        return float(self.steps.response_tokens.sum() / self.steps.period_s.sum())

    @property
    def publications(self) -> int:
        """Number of versions that were published."""
        return int(self.steps.published.sum())

    @property
    def engine_s(self) -> float:
        """Seconds of all engines."""
        return self.engines * self.seconds

    @property
    def trainer_gpu_s(self) -> float:
        """Seconds of all trainer GPUs."""
        return self.trainer_gpus * self.seconds

    @property
    def unattributed_engine_s(self) -> float:
        """Seconds of the engines that no recorded state explains."""
        return self.engine_state_s.get(("unattributed", None), 0.0)

    @property
    def unattributed_engine_ratio(self) -> float:
        """Share of the engines' time, 0..1, that no recorded state explains."""
        return self.unattributed_engine_s / self.engine_s


@dataclass(frozen=True, slots=True, eq=False)
class OtherRun:
    """Another run that shows how training scales."""

    run_id: str
    """Identifier of the run."""
    trainer_gpus: int
    """Trainer GPUs of the run."""
    steps: Annotated[TrainerSteps, LEFT_OUT]
    """Steps of its steady state."""
    warnings: tuple[ModelWarning, ...] = ()
    """Reasons why the comparison with this run may mislead."""

    def beside(self, observed: Observed) -> "OtherRun":
        """Add the warnings that apply beside the calibrated run."""
        ratio = _sample_tokens(self.steps) / _sample_tokens(observed.steps)
        found = list(self.warnings)
        if self.trainer_gpus == observed.trainer_gpus:
            found.append(ModelWarning.SAME_TRAINERS)
        if not 1.0 / _OTHER_LENGTHS <= ratio <= _OTHER_LENGTHS:
            found.append(ModelWarning.OTHER_LENGTHS)
        return replace(self, warnings=tuple(found))


def _sample_tokens(steps: TrainerSteps) -> float:
    trained = steps.trained
    return float(steps.tokens[trained].sum()) / max(1.0, float(steps.samples[trained].sum()))
