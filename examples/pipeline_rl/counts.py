"""What the processes count of what they did, without any code of the hooks: one can be checked by the other."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean

from examples.pipeline_rl.groups import FinishedGroup


@dataclass(slots=True)
class TrainerCounts:
    """Totals of one run, and reward by step."""

    steps: int = 0
    publications: int = 0
    samples_trained: int = 0
    response_tokens_trained: int = 0
    tokens_processed: int = 0
    samples_dropped_stale: int = 0
    response_tokens_dropped_stale: int = 0
    samples_filtered: int = 0
    token_staleness: Counter[int] = field(default_factory=Counter)
    """Tokens by staleness."""
    rewards: list[float] = field(default_factory=list)
    exact_ratios: list[float] = field(default_factory=list)
    evaluation_rewards: list[float] = field(default_factory=list)
    step_compute_s: list[float] = field(default_factory=list)
    loop_s: float = 0.0
    """Wall-clock time of the training loop, without startup."""
    cpu_s: float = 0.0
    """Processor time of the training loop."""

    def note_trained(self, groups: Sequence[FinishedGroup], consumer_version: int, prompt_tokens: int) -> None:
        """Count the samples of one step, token by token."""
        samples = [sample for group in groups for sample in group.samples]
        lengths = [len(sample.tokens) for sample in samples]
        self.steps += 1
        self.samples_trained += len(samples)
        self.response_tokens_trained += sum(lengths)
        self.tokens_processed += sum(lengths) + prompt_tokens * len(samples)
        self.token_staleness.update(consumer_version - version for sample in samples for version in sample.versions)

    def note_rewards(self, rewards: Sequence[float]) -> None:
        """Keep a step's mean reward and its share of exact answers."""
        self.rewards.append(fmean(rewards))
        self.exact_ratios.append(fmean(reward == 1.0 for reward in rewards))

    def note_dropped_stale(self, group: FinishedGroup) -> None:
        """Count a group that was too old."""
        self.samples_dropped_stale += len(group.samples)
        self.response_tokens_dropped_stale += sum(len(sample.tokens) for sample in group.samples)

    def staleness_mean(self, last: Counter[int] | None = None) -> float | None:
        """Mean token staleness; of the tokens counted since `last` when given. None without tokens."""
        counted = self.token_staleness if last is None else self.token_staleness - last
        tokens = counted.total()
        return sum(age * count for age, count in counted.items()) / tokens if tokens else None

    def summary(self) -> dict[str, object]:
        """The totals as JSON-ready values."""
        return {
            "steps": self.steps,
            "publications": self.publications,
            "samples_trained": self.samples_trained,
            "response_tokens_trained": self.response_tokens_trained,
            "tokens_processed": self.tokens_processed,
            "samples_dropped_stale": self.samples_dropped_stale,
            "response_tokens_dropped_stale": self.response_tokens_dropped_stale,
            "samples_filtered": self.samples_filtered,
            "token_staleness_mean": self.staleness_mean(),
            "token_staleness_max": max(self.token_staleness, default=None),
            "token_staleness_histogram": sorted(self.token_staleness.items()),
            "reward_first_steps": _mean_or_none(self.rewards[:10]),
            "reward_last_steps": _mean_or_none(self.rewards[-10:]),
            "exact_ratio_last_steps": _mean_or_none(self.exact_ratios[-10:]),
            "evaluation_rewards": self.evaluation_rewards,
            "step_compute_mean_s": _mean_or_none(self.step_compute_s),
            "loop_s": self.loop_s,
            "trainer_cpu_s": self.cpu_s,
        }


@dataclass(slots=True)
class PeerCounts:
    """What a trainer other than the lead did."""

    worker_id: str
    steps: int = 0
    samples_trained: int = 0
    tokens_processed: int = 0
    cpu_s: float = 0.0
    """Processor time between its first and its last step."""

    def note(self, samples: int, tokens: int) -> None:
        """Count its share of one step."""
        self.steps += 1
        self.samples_trained += samples
        self.tokens_processed += tokens


@dataclass(slots=True)
class SamplerCounts:
    """What this sampler did, counted by itself and not by the hooks."""

    worker_id: str
    tokens_generated: int = 0
    samples_finished: int = 0
    samples_unfinished: int = 0
    forward_passes: int = 0
    weight_updates: int = 0
    cpu_s: float = 0.0
    """Processor time of the sampling loop."""


def _mean_or_none(values: Sequence[float]) -> float | None:
    return fmean(values) if values else None
