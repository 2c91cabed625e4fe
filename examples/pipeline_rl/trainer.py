"""The lead trainer: takes a batch out of the queue, steps, publishes weights, and keeps the staleness cap."""

import random
import time
from collections import Counter
from collections.abc import Callable
from statistics import fmean

import torch
from rlscope_otel import Run

from examples.pipeline_rl.counts import TrainerCounts
from examples.pipeline_rl.engine import answer_greedily
from examples.pipeline_rl.gate import NO_OPEN_GROUP
from examples.pipeline_rl.groups import FinishedGroup
from examples.pipeline_rl.grpo import ScoredGroup
from examples.pipeline_rl.inbox import Inbox
from examples.pipeline_rl.links import Links
from examples.pipeline_rl.options import Options, slime_config, verl_config
from examples.pipeline_rl.ranks import Peers, Replica, record_step
from examples.pipeline_rl.step_metrics import StepMetrics
from examples.pipeline_rl.task import PROMPT_TOKENS, draw_target, prompt_of, reward_of

POLL_S = 0.001
EVALUATION_PROMPTS = 32


class Trainer:
    """What the first of the trainers has beside its replica: the queue, the cap, publications and the batch."""

    def __init__(self, options: Options, links: Links, run: Run) -> None:
        self.options, self.links, self.run = options, links, run
        self.counts = TrainerCounts()
        self.replica, self._peers = Replica(options, links, run, rank=0), Peers(links.peers)
        self._inbox = Inbox(links.groups)
        self._keeps_cap_by_waiting = options.staleness_policy == "publication_waits" and not options.synchronous
        self._keeps_cap_by_dropping = options.staleness_policy == "drop" and not options.synchronous
        links.mailbox.publish(self.replica.weights, 0)
        self._is_published = True
        self._metrics = StepMetrics(
            options.verl_metrics,
            options.run_dir.name,
            verl_config(options),
            slime_config(options) if options.slime_log else None,
        )

    def train(self) -> TrainerCounts:
        """Step until the last step or until told to stop."""
        progress = Progress(self.options, self.counts)
        start_s, start_cpu_s = time.perf_counter(), time.process_time()
        for step in range(1, self.options.steps + 1):
            batch = self._next_batch()
            if batch is None:
                break
            self.step(step, batch)
            self._evaluate(step)
            self._checkpoint(step)
            self._log(step, batch)
            progress.after_step(step)
        self.counts.loop_s = time.perf_counter() - start_s
        self.counts.cpu_s = time.process_time() - start_cpu_s
        self._peers.end()
        self.replica.end()
        return self.counts

    def _next_batch(self) -> list[ScoredGroup] | None:
        """A full batch of groups that may be trained on; None when told to stop first."""
        batch: list[ScoredGroup] = []
        while len(batch) < self.options.groups_per_step:
            missing = self.options.groups_per_step - len(batch)
            self._wait_until(lambda missing=missing: self._has_fresh(missing), "samples")
            if self._keeps_cap_by_waiting:
                self._wait_until(self._leaves_no_straggler, "staleness_cap")
            if self.links.stop.is_set():
                return None
            batch += self._take(missing)
        return batch

    def _take(self, count: int) -> list[ScoredGroup]:
        groups, taken_ns = self._inbox.take_oldest(count), self.run.now_ns()
        self._leave_queue(groups)
        with self._metrics.timed("reward"), self.run.activity("reward"):
            scored = [_score(group, taken_ns) for group in groups]
        if not self.options.filter_flat_groups:
            return scored
        for flat in (group for group in scored if group.is_flat):
            self._discard(flat.group, "filtered", taken_ns)
            self.counts.samples_filtered += len(flat.group.samples)
        return [group for group in scored if not group.is_flat]

    def _has_fresh(self, count: int) -> bool:
        """Whether the queue holds so many groups that may be trained on; throws away those that may not."""
        if self._keeps_cap_by_dropping:
            oldest_allowed = self.links.mailbox.version - self.options.max_staleness
            stale, taken_ns = self._inbox.take_older_than(oldest_allowed), self.run.now_ns()
            if stale:
                self._leave_queue(stale)
            for group in stale:
                self._discard(group, "dropped_stale", taken_ns)
                self.counts.note_dropped_stale(group)
        return len(self._inbox) >= count

    def _leaves_no_straggler(self) -> bool:
        """Whether every started group that this step is the last chance for has arrived.

        After the step a version is published; a group with a token older than the cap allows by then must be in this
        batch. One that is finished but held back by a full queue is not waited for; the publication is skipped.
        """
        gate, oldest_kept = self.links.gate, self.links.mailbox.version + 1 - self.options.max_staleness
        if gate.oldest_running() < oldest_kept:
            return False
        return gate.oldest_open() >= oldest_kept or not gate.has_room(self.options.group)

    def _wait_until(self, ready: Callable[[], bool], reason: str) -> None:
        if ready():
            return
        self._peers.wait_for(reason)
        with self._metrics.timed("gen"), self.run.wait(reason):
            while not ready() and not self.links.stop.is_set():
                self._inbox.await_change(POLL_S)

    def step(self, step: int, batch: list[ScoredGroup]) -> None:
        """One optimizer step and, if it may, the publication of its weights."""
        version, groups = self.links.mailbox.version, [scored.group for scored in batch]
        self.counts.note_trained(groups, version, PROMPT_TOKENS)
        share = self._peers.divide(batch, step, version, is_published=self._is_published)
        with self._metrics.timed("update_actor"):
            publishes = record_step(
                self.run,
                self.replica,
                share,
                lambda: step % self.options.publish_every == 0 and self._may_publish(version + 1),
            )
        self.counts.step_compute_s.append(self.replica.compute_s)
        self._record_deliveries(step, version, batch)
        self.counts.note_rewards([reward for scored in batch for reward in scored.rewards])
        if publishes:
            self._publish(version + 1, step)
        self._is_published = publishes

    def _may_publish(self, version: int) -> bool:
        """Whether no sample that is running or queued would be over the cap once the version is published."""
        if not self._keeps_cap_by_waiting:
            return True
        # In this order: a group is counted as queued and sent before it leaves the open ones, so none is overlooked.
        oldest_open = self.links.gate.oldest_open()
        arrived, queued = self._inbox.oldest()
        if self.links.gate.depth() > arrived * self.options.group:
            return False  # One is on its way; its version is not known here.
        return min(oldest_open, NO_OPEN_GROUP if queued is None else queued) >= version - self.options.max_staleness

    def _publish(self, version: int, step: int) -> None:
        timed = self._metrics.timed("update_weights")
        with timed, self.run.publish_weights(version, label=f"step-{step}") as update:
            self.links.mailbox.publish(self.replica.weights, version)
            update.record(bytes=self.links.mailbox.size_bytes)
        self.counts.publications += 1

    def _leave_queue(self, groups: list[FinishedGroup]) -> None:
        self.links.gate.take(len(groups) * self.options.group)
        self.run.queue_depth("samples", self.links.gate.depth(), self.options.queue_capacity_samples)

    def _discard(self, group: FinishedGroup, outcome: str, taken_ns: int) -> None:
        self.links.gate.note_discarded(len(group.samples))
        for sample in group.samples:
            self.run.delivery(sample.sample_id, outcome, taken_ns=taken_ns, queued_ns=group.queued_ns)

    def _record_deliveries(self, step: int, version: int, batch: list[ScoredGroup]) -> None:
        for scored in batch:
            for sample, reward in zip(scored.group.samples, scored.rewards, strict=True):
                self.run.delivery(
                    sample.sample_id,
                    "trained",
                    taken_ns=scored.taken_ns,
                    queued_ns=scored.group.queued_ns,
                    step=step,
                    consumer_version=version,
                    reward=reward,
                )

    def _log(self, step: int, batch: list[ScoredGroup]) -> None:
        tokens = sum(len(sample.tokens) + PROMPT_TOKENS for scored in batch for sample in scored.group.samples)
        reward = fmean(reward for scored in batch for reward in scored.rewards)
        self._metrics.log(step, tokens, self.options.trainers + self.options.samplers, {"critic/rewards/mean": reward})

    def _evaluate(self, step: int) -> None:
        if not self.options.eval_every or step % self.options.eval_every:
            return
        random_source = random.Random(self.options.seed)
        targets = [draw_target(random_source) for _ in range(EVALUATION_PROMPTS)]
        with self._metrics.timed("testing"), self.run.activity("eval"):
            responses = answer_greedily(
                self.replica.model, self.options.shape, [prompt_of(target) for target in targets]
            )
        self.counts.evaluation_rewards.append(fmean(map(reward_of, targets, responses)))

    def _checkpoint(self, step: int) -> None:
        if not self.options.checkpoint_every or step % self.options.checkpoint_every:
            return
        folder = self.options.checkpoint_dir or self.options.run_dir / "checkpoints"
        folder.mkdir(parents=True, exist_ok=True)
        with self._metrics.timed("save_checkpoint"), self.run.activity("checkpoint"):
            torch.save(self.replica.model.state_dict(), folder / f"step-{step}.pt")


class Progress:
    """One line every few steps."""

    def __init__(self, options: Options, counts: TrainerCounts) -> None:
        self._every, self._counts = options.log_every, counts
        self._since_s, self._tokens = time.perf_counter(), 0
        self._staleness: Counter[int] = Counter()

    def after_step(self, step: int) -> None:
        """Print what happened since the last line, if it is time."""
        if step % self._every:
            return
        counts, now_s = self._counts, time.perf_counter()
        rate = (counts.response_tokens_trained - self._tokens) / (now_s - self._since_s)
        print(
            f"step {step:4d}  reward {fmean(counts.rewards[-self._every :]):+.2f}"
            f"  tokens/s {rate:6.0f}  staleness {counts.staleness_mean(self._staleness) or 0.0:.2f}"
            f"  dropped {counts.samples_dropped_stale}  step {(now_s - self._since_s) / self._every:.3f} s",
            flush=True,
        )
        self._since_s, self._tokens = now_s, counts.response_tokens_trained
        self._staleness = counts.token_staleness.copy()


def _score(group: FinishedGroup, taken_ns: int) -> ScoredGroup:
    rewards = tuple(reward_of(group.target, sample.tokens) for sample in group.samples)
    return ScoredGroup(group, rewards, taken_ns)


def train_to_the_end(options: Options, links: Links, run: Run) -> TrainerCounts:
    """The trainer's work between its start and its end."""
    with run.activity("startup"):
        torch.set_num_threads(1)
        torch.manual_seed(options.seed)
        trainer = Trainer(options, links, run)
    return trainer.train()
