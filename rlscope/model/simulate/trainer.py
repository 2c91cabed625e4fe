"""The trainer's clock: the duration of a step, and the split of its seconds. It makes no decisions."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from rlscope.model.system import System
from rlscope.model.training.step_time import trained_tokens_per_step, trainer_step

Wait = Literal["samples", "staleness_cap"]


@dataclass(slots=True)
class TrainerSeconds:
    """The trainer's seconds by activity; they add up to the time that passed."""

    train_s: float = 0.0
    """Forward and backward passes with the overhead of a step."""
    phases_s: float = 0.0
    publish_s: float = 0.0
    wait_samples_s: float = 0.0
    wait_staleness_cap_s: float = 0.0
    """Waits for running groups that the next publication would make too stale."""


class SimulatedTrainer:
    """Wait, train on a batch, publish after all batches of a version, and wait again."""

    def __init__(self, system: System, gpus: int, step_factor: Callable[[], float]) -> None:
        workload, self._step_factor, self._uneven_s = system.workload, step_factor, system.trainer.uneven_s
        mean = trainer_step(system.trainer, workload, system.update, gpus)
        overhead_s, self._batches_per_version = system.trainer.overhead_s, workload.batches_per_version
        self._s_per_token = (float(mean.compute_s) - overhead_s) / trained_tokens_per_step(workload)
        self._overhead_s = overhead_s / self._batches_per_version
        self._phases_s = float(mean.phases_s) / self._batches_per_version
        self._prompt_tokens = workload.trained_prompt_tokens
        self.blocked_s = mean.blocked_s
        self.totals = TrainerSeconds()
        """Seconds from the start to the last change."""
        self.waits_for: Wait | None = "samples"
        """None while it trains or publishes."""
        self.since_s = 0.0
        """Start of the current activity."""
        self.batches = 0
        """Batches started so far."""

    @property
    def steps(self) -> int:
        """Steps started so far; a step trains on all batches of a version."""
        return -(-self.batches // self._batches_per_version)

    @property
    def makes_version(self) -> bool:
        """Whether the batch started last is the last of its version."""
        return self.batches % self._batches_per_version == 0

    def wait(self, reason: Wait, now_s: float) -> None:
        """Wait from now on, for this reason."""
        if self.waits_for == reason:
            return
        self._end_wait(now_s)
        if self.waits_for is None:
            self.totals.publish_s += now_s - self.since_s
        self.waits_for, self.since_s = reason, now_s

    def step(self, samples: int, response_tokens: int, now_s: float) -> float:
        """Train on a batch; returns the end of the step."""
        self._end_wait(now_s)
        self.waits_for, self.since_s = None, now_s
        factor = self._step_factor()
        tokens = response_tokens + samples * self._prompt_tokens
        self.batches += 1
        train_s = factor * (self._overhead_s + tokens * self._s_per_token)
        phases_s = factor * (self._phases_s + self._uneven_s(self.steps) / self._batches_per_version)
        self.totals.train_s += train_s
        self.totals.phases_s += phases_s
        return now_s + train_s + phases_s

    def publish(self, now_s: float) -> None:
        """Publish after training on the batch."""
        self.since_s = now_s

    def _end_wait(self, now_s: float) -> None:
        if self.waits_for == "samples":
            self.totals.wait_samples_s += now_s - self.since_s
        elif self.waits_for == "staleness_cap":
            self.totals.wait_staleness_cap_s += now_s - self.since_s
