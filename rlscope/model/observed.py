"""What the model reads from a run: one steady stretch of it, and the train steps of other runs. Facts only, no fit."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from rlscope.model.arrays import Counts, Flags, Reals
from rlscope.model.lengths import LengthLaw
from rlscope.model.policies import QueueOrder
from rlscope.model.training.scaling import StepsElsewhere
from rlscope.model.warnings import ModelWarning

_OTHER_LENGTHS: Final = 1.25
"""Mean tokens of a sample over those of the other run, either way. Attention is a tenth or so of a step at usual
lengths, and grows with them: a quarter longer costs some 2%, which is what two runs are taken to differ by."""


@dataclass(frozen=True, slots=True, eq=False)
class TrainerSteps:
    """The optimizer steps of the stretch, in order. Seconds are per trainer GPU, so they add up to the period."""

    period_s: Reals
    """End of the step before to the end of this one."""
    train_s: Reals
    logprobs_s: Reals
    publish_s: Reals
    """Publications and transfers that the trainers did themselves."""
    other_s: Reals
    """Checkpoints, evaluations, rewards."""
    wait_s: Reals
    samples: Counts
    tokens: Counts
    """Prompt and response tokens processed."""
    response_tokens: Counts
    published: Counts
    """Versions published from the step: 0 or 1."""

    @property
    def per_version(self) -> float | None:
        """Steps from one publication to the next, mean; None where none was published."""
        return steps_per_version(self.published)

    @property
    def trained(self) -> Flags:
        """Which of them say how many tokens they trained on, and for how long."""
        return (self.tokens > 0) & (self.train_s > 0.0)


def steps_per_version(published: Counts) -> float | None:
    """Steps from one publication to the next, mean; published: 1 for each step that published, in order, else 0."""
    places = np.flatnonzero(published)
    if not places.size:
        return None
    # Of a version that began before the stretch, or ends after it, only some steps are seen.
    following = int(published[places[0] + 1 :].sum())
    return float(places[-1] - places[0]) / following if following else float(published.size / published.sum())


@dataclass(frozen=True, slots=True, eq=False)
class PassCosts:
    """Forward passes of all engines, gathered by batch size and by how full the KV cache was."""

    engine: Counts
    """Number of the engine, 0, 1, ..."""
    running: Counts
    kv_tokens: Reals
    """Resident tokens, mean over the passes; NaN where not recorded."""
    prefills: Flags
    rows: Counts
    """Measurements."""
    passes: Counts
    busy_s: Reals
    between_s: Reals
    """Time between passes inside the rows."""
    pass_p50_s: Reals
    """Median over rows of the row's mean pass."""
    decode_tokens: Counts
    prefill_tokens: Counts
    engine_names: tuple[str, ...] = ()
    """By the number of the engine; empty where they have none."""


@dataclass(frozen=True, slots=True)
class Delivered:
    """Response tokens that left the queue in the stretch, once per delivery."""

    trained_tokens: int
    dropped_tokens: int
    """As stale, or abandoned."""
    filtered_tokens: int


@dataclass(frozen=True, slots=True)
class PreemptionCounts:
    """What engines count of requests that they preempted because their KV cache was full."""

    preemptions: int
    recomputed_tokens: int | None
    """Recomputed after preemptions; where updates drop the KV, what they recompute is included. None where no more was
    computed than the prompts hold: part of a prompt was then not computed, as with a prefix cache."""


@dataclass(frozen=True, slots=True)
class SeenScheduling:
    """How rollouts were scheduled, as far as the stretch shows it. None: it does not show that."""

    queued_alone_ratio: float | None = None
    """Of the samples finished before the last one of their group, the share that entered the queue by themselves."""
    delivery_s: float | None = None
    """From the last token of a group's last sample until it was queued; mean."""
    disorder_ratios: Mapping[QueueOrder, float | None] = field(default_factory=dict[QueueOrder, float | None])
    """By order: pairs of a sample taken and one left behind that it would have taken the other way round, of all."""
    untaken_high_samples: int | None = None
    """Samples in flight until the trainers take them, exceeded for at most 1% of the time."""
    untrained_high_samples: int | None = None
    """The same until the end of their step."""
    taken_on_arrival_ratio: float | None = None
    """Samples that were queued while their batch was being taken, and then taken at once, of all samples taken."""


@dataclass(frozen=True, slots=True)
class SeenLoad:
    """Mean loads and waits of the stretch. None: not recorded."""

    running_samples: float | None = None
    """Between first schedule and last token, without those outside the engines; over all engines."""
    in_flight_samples: float | None = None
    """Between first schedule and leaving the queue."""
    queued_samples: float | None = None
    wait_samples_ratio: float | None = None
    """Share of the trainers' time, 0..1."""
    wait_staleness_cap_ratio: float | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Observed:
    """One stretch of a run."""

    start_ns: int
    end_ns: int
    trainer_gpus: int
    engines: int
    gpus_per_engine: int
    max_running: int | None
    """Most requests an engine may run, the setting; None when not recorded."""
    kv_capacity_tokens: int | None
    """Of one engine; None when not recorded."""
    device_name: str | None
    steps: TrainerSteps
    passes: PassCosts
    engine_state_s: Mapping[tuple[str, str | None], float]
    """Engine-seconds by ledger state and reason; they add up to engines * seconds."""
    lengths: LengthLaw
    began_samples: int
    """Samples that began in the stretch: those of `lengths`."""
    prompt_tokens: float
    """Mean over those."""
    group_size: int
    finished_samples: int
    """Segments whose last token is in the stretch."""
    environment_samples: float
    """Of those, samples outside the engine."""
    delivered: Delivered
    apply_s: float | None
    """Seconds that an engine does not generate for one version's sake; None when none was applied."""
    update_delay_s: float | None
    """From the start of a publication to the end of its application, mean; None when not recorded."""
    kv_kept: bool
    """Whether engines keep their KV cache over an update; True where that was not recorded."""
    staleness: tuple[tuple[int, int], ...]
    """(staleness, response tokens trained in the stretch), by staleness."""
    oldest_staleness: tuple[tuple[int, int], ...] = ()
    """(staleness of the oldest token, samples trained in the stretch), by staleness; empty where it is not known."""
    environment_waits_s: tuple[float, ...] = ()
    """Equally likely waits of a sample outside the engine; empty where none was recorded."""
    one_engine_groups_ratio: float | None = None
    """Groups all of whose samples began on one engine; None where there is one engine, or no group."""
    prefetched_batches: float | None = None
    """Optimizer steps' batches that the trainers held when a step began, besides its own and those of steps that share
    one with it; None where nothing says."""
    batches_per_step: float = 1.0
    """Batches that trainers take, and train on, one after the other for an optimizer step; below 1: several steps share
    what was taken at once."""
    preemption_counts: PreemptionCounts | None = None
    """None where engines do not count preemptions."""
    scheduling: SeenScheduling = SeenScheduling()
    load: SeenLoad = SeenLoad()

    @property
    def seconds(self) -> float:
        """Length of the stretch."""
        return (self.end_ns - self.start_ns) / 1e9

    @property
    def trained_tokens_per_s(self) -> float:
        """Response tokens trained per second, over the steps of the stretch: sum over sum."""
        return float(self.steps.response_tokens.sum() / self.steps.period_s.sum())


@dataclass(frozen=True, slots=True, eq=False)
class OtherRun:
    """The train steps of its steady stretch."""

    run_id: str
    trainer_gpus: int
    steps: TrainerSteps
    warnings: tuple[ModelWarning, ...] = ()

    @property
    def elsewhere(self) -> StepsElsewhere:
        """Tokens and seconds of the steps that trained."""
        trained = self.steps.trained
        return StepsElsewhere(
            self.trainer_gpus, self.steps.tokens[trained].astype(np.float64), self.steps.train_s[trained]
        )

    def beside(self, observed: Observed) -> "OtherRun":
        """With the warnings that show beside the run that is calibrated."""
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
