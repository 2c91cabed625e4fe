"""The trainer process: a batch from the queue, one GRPO step, its weights to the engine."""

import time
from collections.abc import Callable
from statistics import fmean

import torch
from rlscope_otel import Run

from examples.pipeline_rl.counts import TrainerCounts
from examples.pipeline_rl.groups import FinishedGroup
from examples.pipeline_rl.grpo import ScoredGroup, StepOutcome, micro_batches, optimize
from examples.pipeline_rl.inbox import Inbox
from examples.pipeline_rl.task import PROMPT_TOKENS, reward_of
from examples.vllm_torch.links import Links
from examples.vllm_torch.options import Options
from examples.vllm_torch.policy import Policy

POLL_S = 0.001
_LINES = 10


class Trainer:
    """One model, its optimizer and the batch it waits for."""

    def __init__(self, options: Options, links: Links, run: Run, policy: Policy) -> None:
        self.options, self.links, self.run, self.policy = options, links, run, policy
        self.counts = TrainerCounts()
        self._optimizer = torch.optim.AdamW(policy.parameters(), lr=options.learning_rate, weight_decay=0.0)
        self._inbox = Inbox((links.groups,))

    def train(self) -> TrainerCounts:
        """Step until the last step or until told to stop."""
        start_s, start_cpu_s = time.perf_counter(), time.process_time()
        for step in range(1, self.options.steps + 1):
            batch = self._next_batch()
            if batch is None:
                break
            self._step(step, batch)
            self._print_progress(step)
        self.counts.loop_s = time.perf_counter() - start_s
        self.counts.cpu_s = time.process_time() - start_cpu_s
        return self.counts

    def _next_batch(self) -> list[ScoredGroup] | None:
        """A full batch of groups that may be trained on; None when told to stop first."""
        if not self._has_batch():
            self._wait_until(self._has_batch)
        if self.links.stop.is_set():
            return None
        groups, taken_ns = self._inbox.take_oldest(self.options.groups_per_step), self.run.now_ns()
        self._leave_queue(groups)
        with self.run.activity("reward"):
            return [_score(group, taken_ns) for group in groups]

    def _has_batch(self) -> bool:
        """Whether the queue holds a batch that may be trained on; throws away what may not."""
        oldest_allowed = self.links.mailbox.version - self.options.max_staleness
        stale, taken_ns = self._inbox.take_older_than(oldest_allowed), self.run.now_ns()
        if stale:
            self._leave_queue(stale)
        for group in stale:
            self.counts.note_dropped_stale(group)
            for sample in group.samples:
                self.run.delivery(sample.sample_id, "dropped_stale", taken_ns=taken_ns, queued_ns=group.queued_ns)
        return len(self._inbox) >= self.options.groups_per_step

    def _wait_until(self, ready: Callable[[], bool]) -> None:
        with self.run.wait("samples"):
            while not ready() and not self.links.stop.is_set():
                self._inbox.await_change(POLL_S)

    def _leave_queue(self, groups: list[FinishedGroup]) -> None:
        self.links.gate.take(len(groups) * self.options.group)
        self.run.queue_depth("samples", self.links.gate.depth(), self.options.queue_capacity_samples)

    def _step(self, step: int, batch: list[ScoredGroup]) -> None:
        version, groups = self.links.mailbox.version, [scored.group for scored in batch]
        self.counts.note_trained(groups, version, PROMPT_TOKENS)
        samples = [sample for group in groups for sample in group.samples]
        tokens = sum(len(sample.tokens) + PROMPT_TOKENS for sample in samples)
        rewards = [reward for scored in batch for reward in scored.rewards]
        with self.run.train_step(step, version_in=version, samples=len(samples), tokens=tokens) as record:
            outcome = self._compute(batch, version)
            record.record(
                loss=outcome.loss,
                grad_norm=outcome.grad_norm,
                entropy=outcome.entropy,
                reward_mean=fmean(rewards),
                clip_ratio=outcome.clip_ratio,
                importance=[(m.staleness, m.tokens, m.sum_w, m.sum_w2) for m in outcome.moments],
                fresh=outcome.fresh,
                version_out=version + 1,
            )
        self._record_deliveries(step, version, batch)
        self.counts.note_rewards(rewards)
        self._publish(version + 1)

    def _compute(self, batch: list[ScoredGroup], version: int) -> StepOutcome:
        start_s = time.perf_counter()
        outcome = optimize(self.policy, self._optimizer, micro_batches(batch, version), None)
        self.counts.step_compute_s.append(time.perf_counter() - start_s)
        return outcome

    def _publish(self, version: int) -> None:
        """Send the parameters by name. Where embeddings are tied, the head is not one of them."""
        weights = dict(self.policy.language_model.named_parameters())
        with self.run.publish_weights(version, label=str(version)) as update:
            update.record(bytes=self.links.mailbox.publish(weights, version))
        self.counts.publications += 1

    def _record_deliveries(self, step: int, version: int, batch: list[ScoredGroup]) -> None:
        for scored in batch:
            group = scored.group
            for sample, reward in zip(group.samples, scored.rewards, strict=True):
                self.run.delivery(
                    sample.sample_id,
                    "trained",
                    taken_ns=scored.taken_ns,
                    queued_ns=group.queued_ns,
                    step=step,
                    consumer_version=version,
                    reward=reward,
                )

    def _print_progress(self, step: int) -> None:
        if step % max(1, self.options.steps // _LINES) == 0:
            staleness, reward = self.counts.staleness_mean() or 0.0, fmean(self.counts.rewards[-10:])
            print(f"step {step:4d}  reward {reward:+.2f}  staleness {staleness:.2f}", flush=True)


def _score(group: FinishedGroup, taken_ns: int) -> ScoredGroup:
    rewards = tuple(reward_of(group.target, sample.tokens) for sample in group.samples)
    return ScoredGroup(group, rewards, taken_ns)


def train_to_the_end(options: Options, links: Links, run: Run) -> TrainerCounts:
    """The trainer's work between its start and its end."""
    with run.activity("startup"):
        torch.set_num_threads(1)
        trainer = Trainer(options, links, run, Policy(options))
    return trainer.train()
