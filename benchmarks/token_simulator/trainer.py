"""All trainer GPUs as one: waits for a batch, computes, publishes, and keeps the cap on staleness.

The ways to keep it are those of `examples/pipeline_rl`:
- `drop`: a queued group with a token over the cap is thrown away;
- `publication_waits`: before a step, wait for every group that this step is the last chance for; should more of them
  be left than the batch holds, the next publication is skipped and they are trained on first. Without
  `waits_for_queued` only groups that generate count, so that finished ones pass the cap in the queue.
"""

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator

from .agenda import Agenda
from .exchange import Exchange
from .recording import Recording
from .requests import Group
from .world import World

Publisher = Callable[[float, int], None]
"""Told the time and the version that has been published."""


class Trainer:
    """A loop of steps. It waits, or it has exactly one thing on the agenda."""

    def __init__(
        self, world: World, gpus: int, steps: int, exchange: Exchange, agenda: Agenda, noise: Iterator[float]
    ) -> None:
        self._world, self._steps, self._exchange, self._agenda, self._noise = world, steps, exchange, agenda, noise
        training = world.training
        relative = (gpus / training.reference_gpus) ** training.scaling_exponent
        self._tokens_per_s = training.tokens_per_gpu_s * training.reference_gpus * relative
        self.recording: Recording | None = None
        self.on_published: Publisher = lambda _now_s, _version: None
        self._is_flat: Iterator[bool] = iter(())
        self._groups_per_step = world.rollouts.samples_per_step // world.rollouts.unit_samples
        self._shares = training.steps_per_version if training.shares_batch else 1
        self._micro_groups = training.micro_batch_samples // world.rollouts.unit_samples
        self._held: list[Group] = []
        self._dealt: deque[list[Group]] = deque()
        """Batches of the steps that share what was taken, but for the step that has begun."""
        self._batch: list[Group] = []
        self._began_s: float | None = None
        """When the step began whose batch is not yet taken as a whole."""
        self._waits_for: str | None = None
        self._waiting_since_s = 0.0
        self.waits_s: defaultdict[str, float] = defaultdict(float)
        self.step_ends_s: list[float] = []
        self.step_response_tokens: list[int] = []
        self.step_publishes: list[bool] = []
        self.staleness_tokens: Counter[int] = Counter()
        self.step_staleness_samples: list[Counter[int]] = []
        self.step_outcomes: list[defaultdict[str, list[int]]] = []

    def start(self, now_s: float, flat: Iterator[bool]) -> None:
        """Begin to wait for the first batch; `flat` says of each group taken whether it is thrown away."""
        self._is_flat = flat
        self._await_batch(now_s)

    def look(self, now_s: float) -> None:
        """Something has changed: if waiting, see whether a step can start."""
        if self._waits_for is not None:
            self._await_batch(now_s)

    def throw_away(self, group: Group, outcome: str) -> None:
        """A group that has left the queue is not trained on."""
        self._exchange.discard(group)
        self._left([group], outcome)
        if self.recording is not None:
            self.recording.thrown_away(group, outcome)

    def _await_batch(self, now_s: float) -> None:
        if self._micro_groups:
            return self._await_micro_batch(now_s)
        if not self._dealt:
            groups = self._groups_per_step * self._shares
            wanted = groups * (1 + self._world.training.batches_ahead)
            while len(self._held) < wanted:
                reason = self._take(now_s, min(wanted - len(self._held), groups))
                if reason is not None:
                    return self._wait(now_s, reason)
            batch, self._held = self._held[:groups], self._held[groups:]
            self._dealt += [batch[step :: self._shares] for step in range(self._shares)]
        self._wake(now_s)
        self._batch = self._dealt.popleft()
        self._step(now_s)

    def _await_micro_batch(self, now_s: float) -> None:
        """Train on the next part of the batch once it is there; the step begins with the first part."""
        wanted = min(self._micro_groups, self._groups_per_step - len(self._batch))
        while len(self._held) < wanted:
            reason = self._take(now_s, wanted - len(self._held))
            if reason is not None:
                return self._wait(now_s, reason)
        self._wake(now_s)
        part, self._held = self._held, []
        self._began_s = now_s if self._began_s is None else self._began_s
        self._batch += part
        self._count(part)
        end_s = now_s + self._compute_s(part) * next(self._noise)
        if len(self._batch) < self._groups_per_step:
            return self._agenda.schedule(end_s, lambda at_s: self._end_part(part, now_s, at_s))
        end_s += self._world.training.overhead_s
        start_s = now_s if self._world.training.records_micro_batches else self._began_s
        self._began_s = None
        self._agenda.schedule(end_s, lambda at_s: self._end_step(start_s, at_s, part))

    def _end_part(self, part: list[Group], start_s: float, now_s: float) -> None:
        if self.recording is not None and self._world.training.records_micro_batches:
            version = self._exchange.version
            self.recording.train_step(len(self.step_ends_s) + 1, start_s, now_s, version, version, part)
        self._await_micro_batch(now_s)

    def _take(self, now_s: float, missing: int) -> str | None:
        """Take so many groups, of which some may be thrown away; returns why they cannot be taken yet."""
        self._drop_stale(now_s)
        reason = self._unready(missing)
        if reason is not None:
            return reason
        for group in self._exchange.take(now_s, missing):
            if next(self._is_flat):
                self.throw_away(group, "filtered")
            else:
                self._held.append(group)
        self._note_depth(now_s)
        return None

    def _unready(self, missing: int) -> str | None:
        """Why so many groups cannot be taken yet, as a wait reason."""
        if len(self._exchange.queue) < missing:
            return "samples"
        limits, exchange = self._world.limits, self._exchange
        if limits.staleness_policy != "publication_waits" or limits.max_staleness is None:
            return None
        oldest_kept = exchange.version + 1 - limits.max_staleness
        if _is_older(exchange.oldest_generating(), oldest_kept):
            return "staleness_cap"
        if not limits.waits_for_queued:
            return None
        # A group that a full queue holds back is not waited for: the publication is skipped instead.
        held_back = _is_older(exchange.oldest_unqueued(), oldest_kept)
        return "staleness_cap" if held_back and exchange.has_room() else None

    def _drop_stale(self, now_s: float) -> None:
        limits = self._world.limits
        if limits.staleness_policy != "drop" or limits.max_staleness is None:
            return
        for group in self._exchange.take_older_than(now_s, self._exchange.version - limits.max_staleness):
            self.throw_away(group, "dropped_stale")
            self._note_depth(now_s)

    def _step(self, now_s: float) -> None:
        training, groups = self._world.training, self._batch
        change = self._world.change
        compute_s = self._compute_s(groups) * change.of(change.training, self._exchange.version)
        start_s = now_s + training.logprobs_ratio * compute_s * next(self._noise)
        end_s = start_s + (training.overhead_s + compute_s) * next(self._noise)
        if self.recording is not None and start_s > now_s:
            self.recording.trainer_activity("logprobs", now_s, start_s)
        self._count(groups)
        self._agenda.schedule(end_s, lambda at_s: self._end_step(start_s, at_s, groups))

    def _compute_s(self, groups: list[Group]) -> float:
        return sum(group.response_tokens + group.prompt_tokens for group in groups) / self._tokens_per_s

    def _end_step(self, start_s: float, now_s: float, groups: list[Group]) -> None:
        """groups: those that the last row of the step is about."""
        version = self._exchange.version
        publishes = self._may_publish(version + 1)
        self.step_ends_s.append(now_s)
        self.step_response_tokens.append(sum(group.response_tokens for group in self._batch))
        self.step_publishes.append(publishes)
        if self.recording is not None:
            version_out = version + 1 if publishes else version
            is_part = self._world.training.records_micro_batches
            row_groups = groups if is_part else self._batch
            self.recording.train_step(len(self.step_ends_s), start_s, now_s, version, version_out, row_groups)
        self._exchange.trained(now_s, self._batch)
        self._batch = []
        if not publishes:
            return self._end_publication(now_s)
        change = self._world.change
        end_s = now_s + self._world.updates.publish_s * change.of(change.publish, version)
        if self.recording is not None:
            self.recording.publication(version + 1, now_s, end_s)
        self._agenda.schedule(end_s, self._published)

    def _published(self, now_s: float) -> None:
        self._exchange.version += 1
        self.on_published(now_s, self._exchange.version)
        self._exchange.announce(now_s)
        self._end_publication(now_s)

    def _end_publication(self, now_s: float) -> None:
        training, step = self._world.training, len(self.step_ends_s)
        if step == self._steps:
            return self._agenda.close(now_s)
        if not training.checkpoint_steps or step % training.checkpoint_steps:
            return self._await_batch(now_s)
        if self.recording is not None:
            self.recording.trainer_activity("checkpoint", now_s, now_s + training.checkpoint_s)
        self._agenda.schedule(now_s + training.checkpoint_s, self._await_batch)

    def _may_publish(self, version: int) -> bool:
        """Whether the version is due, and nothing that runs or is queued would be over a cap that it waits for."""
        if (len(self.step_ends_s) + 1) % self._world.training.steps_per_version:
            return False
        limits = self._world.limits
        if limits.staleness_policy != "publication_waits" or limits.max_staleness is None:
            return True
        oldest_kept = version - limits.max_staleness
        if not limits.waits_for_queued:
            return not _is_older(self._exchange.oldest_generating(), oldest_kept)
        queued = min((group.oldest_version for group in self._exchange.queue), default=None)
        return not _is_older(queued, oldest_kept) and not _is_older(self._exchange.oldest_unqueued(), oldest_kept)

    def _count(self, groups: list[Group]) -> None:
        """Take note of what the step that begins is trained on."""
        version = self._exchange.version
        self._left(groups, "trained")
        for run in (run for group in groups for request in group.requests for run in request.runs):
            self.staleness_tokens[version - run.version] += run.end - run.start
        oldest = (request.runs[0].version for group in groups for request in group.requests)
        if len(self.step_staleness_samples) == len(self.step_ends_s):
            self.step_staleness_samples.append(Counter())
        self.step_staleness_samples[-1].update(version - each for each in oldest)
        if self.recording is not None:
            self.recording.trained(len(self.step_ends_s) + 1, version, groups)

    def _left(self, groups: list[Group], outcome: str) -> None:
        """Take note of the lengths of samples that are gone, by the step that ends next."""
        while len(self.step_outcomes) <= len(self.step_ends_s):
            self.step_outcomes.append(defaultdict(list))
        lengths = (request.length_tokens for group in groups for request in group.requests)
        self.step_outcomes[-1][outcome] += lengths

    def _note_depth(self, now_s: float) -> None:
        if self.recording is not None:
            self.recording.depth(self.recording.trainers[0], now_s, self._exchange.depth_samples)

    def _wait(self, now_s: float, reason: str) -> None:
        if reason != self._waits_for:
            self._wake(now_s)
            self._waits_for, self._waiting_since_s = reason, now_s

    def _wake(self, now_s: float) -> None:
        if self._waits_for is None:
            return
        self.waits_s[self._waits_for] += now_s - self._waiting_since_s
        if self.recording is not None:
            self.recording.trainer_activity("wait", self._waiting_since_s, now_s, self._waits_for)
        self._waits_for = None


def _is_older(version: int | None, than: int) -> bool:
    return version is not None and version < than
