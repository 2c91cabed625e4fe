"""One inference engine, pass by pass.

Between two passes it takes new weights, queues what is finished, admits groups and prefills, in that order, as the
sampler of `examples/pipeline_rl` does. It is asleep, or it has exactly one thing on the agenda.
"""

from collections import defaultdict, deque
from collections.abc import Iterator
from functools import partial

from .agenda import Agenda, Handler
from .batch import Batch
from .draws import grow
from .exchange import Exchange
from .pass_cost import PassCost, decode_s
from .recording import Recording
from .requests import Group, Request
from .versions import VersionLog
from .world import World


class Engine:
    """A batch, the weights it runs with, and a clock."""

    def __init__(
        self,
        worker_id: str,
        world: World,
        batch: Batch,
        cost: PassCost,
        exchange: Exchange,
        agenda: Agenda,
        engines: int,
    ) -> None:
        self.worker_id, self._world, self.batch, self._cost = worker_id, world, batch, cost
        self._engines = engines
        self._exchange, self._agenda = exchange, agenda
        self.recording: Recording | None = None
        self.groups: Iterator[Group] = iter(())
        self._outbox: deque[Group] = deque()
        self._log = VersionLog()
        self._arrived_version = 0
        self._is_decoding = False
        self._sleeps_for: str | None = None
        self._asleep_since_s = 0.0
        self._busy_until_s = 0.0
        self.waits_s: defaultdict[str, float] = defaultdict(float)
        self.decoded_tokens = 0
        self.decoding_s = 0.0
        self.running_s = 0.0
        """Running requests times the seconds of their passes."""
        self.prefilled_tokens = 0
        self.preemptions = 0
        self.recomputed_tokens = 0

    def receive(self, version: int, now_s: float) -> None:
        """New weights have arrived; the present pass is finished with the old ones."""
        self._arrived_version = max(version, self._arrived_version)
        self.look(now_s)

    def look(self, now_s: float) -> None:
        """Something has changed: if asleep, see whether there is something to do."""
        if self._sleeps_for is not None:
            self.between_passes(now_s)

    def between_passes(self, now_s: float) -> None:
        """All that happens between two passes, up to the start of the next one or to falling asleep."""
        if self._arrived_version > self._log.version:
            return self._apply_weights(now_s)
        self._queue_finished(now_s)
        self.batch.rejoin()
        blocked_by = self._admit(now_s)
        prefill_tokens = self._join(now_s)
        if prefill_tokens and not self._world.passes.mixes_prefill:
            return self._prefill(prefill_tokens, now_s)
        preemptions = self.batch.preempt_overflow()
        self.preemptions += preemptions
        if self.batch.running:
            return self._decode(now_s, prefill_tokens, preemptions)
        # What is away would be run at once; only a full queue holds the engine back beyond that.
        is_held_by_environment = self.batch.away and blocked_by != "backpressure"
        self._sleep(now_s, "environment" if is_held_by_environment else blocked_by or "requests")

    def stop(self, now_s: float) -> float:
        """The run is over: the present pass is finished, nothing else. Returns when the engine ends."""
        end_s = max(now_s, self._busy_until_s)
        self._wake(now_s)
        if self._is_decoding:
            self._complete_pass(end_s)
        for request in self.batch.cut_short():
            request.runs, request.finished_s = self._log.runs_of(request.stints), end_s
            if self.recording is not None:
                self.recording.sample(self.worker_id, request, "unfinished")
        return end_s

    def _apply_weights(self, now_s: float) -> None:
        updates, version = self._world.updates, self._arrived_version
        self._log.take(self.batch.passes, version)
        change = self._world.change
        self._cost.factor = change.of(change.passes, version)
        end_s = now_s + updates.apply_s
        if self.recording is not None:
            kv = "kept" if updates.kv_kept else "recomputed"
            self.recording.update(self.worker_id, "apply", version, now_s, end_s, paused=True, kv=kv)
        lost_tokens = 0 if updates.kv_kept else self.batch.kv_tokens
        then = partial(self._prefill, lost_tokens) if lost_tokens else self.between_passes
        evaluations = self._world.evaluations
        if evaluations.every_versions and version % evaluations.every_versions == 0:
            then = partial(self._evaluate, then=then)
        self._stay_busy(now_s, end_s, then)

    def _evaluate(self, now_s: float, then: Handler) -> None:
        evaluations = self._world.evaluations
        end_s = now_s + evaluations.seconds / (self._engines if evaluations.is_shared else 1)
        if self.recording is not None:
            self.recording.activity(self.worker_id, evaluations.activity, now_s, end_s)
            self._record_passes(evaluations.requests, now_s, end_s)
        self._stay_busy(now_s, end_s, then)

    def _record_passes(self, requests: int, from_s: float, to_s: float) -> None:
        """Of an evaluation, each as long as the mean one over so many requests; their KV is not counted."""
        pass_s = decode_s(self._world.passes, requests)
        between_s = self._world.passes.between_s
        while requests and self.recording is not None and from_s + pass_s + between_s <= to_s:
            times_s = (from_s, from_s + pass_s, from_s + pass_s + between_s)
            kv_tokens = self.batch.resident_tokens
            self.recording.engine_pass(self.worker_id, times_s, (requests, 0, requests, 0), kv_tokens, 0)
            from_s = times_s[2]

    def _queue_finished(self, now_s: float) -> None:
        while self._outbox and self._exchange.try_queue(now_s, self._outbox[0]):
            self._outbox.popleft()
            if self.recording is not None:
                self.recording.depth(self.worker_id, now_s, self._exchange.depth_samples)

    def _admit(self, now_s: float) -> str | None:
        """Start groups while slots are free; returns why no more may start, None when slots ran out first."""
        while len(self.batch.waiting) < self.batch.free_slots:
            reason = "backpressure" if self._outbox else self._exchange.blocked_by(self._log.version)
            if reason is not None:
                return reason
            group = next(self.groups)
            self._exchange.admit(group, self._log.version)
            for request in group.requests:
                grow(self._world, request, self._log.version)
                request.submitted_s = now_s
                self.batch.waiting.append(request)
        return None

    def _join(self, now_s: float) -> int:
        """Take waiting requests into the batch; returns the tokens to prefill."""
        if not self.batch.waiting:
            return 0
        joining = self.batch.join()
        self.recomputed_tokens += sum(request.held_tokens for request in joining if request.preemptions)
        for request in joining:
            if request.started_s is None:
                request.started_s = now_s
        return sum(request.held_tokens for request in joining)

    def _prefill(self, tokens: int, now_s: float) -> None:
        pass_end_s = now_s + self._cost.prefill_s(tokens)
        self.prefilled_tokens += tokens
        self._run_pass(now_s, pass_end_s, 0, tokens, 0, self.between_passes)

    def _decode(self, now_s: float, prefill_tokens: int, preemptions: int) -> None:
        running = len(self.batch.running)
        pass_s = self._cost.decode_s(running, self.batch.kv_tokens, prefill_tokens)
        self._is_decoding = True
        self.decoded_tokens += running
        self.prefilled_tokens += prefill_tokens
        self.decoding_s += pass_s
        self.running_s += running * pass_s
        self._run_pass(now_s, now_s + pass_s, running, prefill_tokens, preemptions, self._end_pass)

    def _run_pass(
        self, now_s: float, pass_end_s: float, decoded: int, prefilled: int, preemptions: int, then: Handler
    ) -> None:
        end_s = pass_end_s + self._world.passes.between_s
        if self.recording is not None:
            state = (len(self.batch.running), len(self.batch.waiting), decoded, prefilled)
            kv_tokens = self.batch.resident_tokens
            self.recording.engine_pass(self.worker_id, (now_s, pass_end_s, end_s), state, kv_tokens, preemptions)
        self._stay_busy(now_s, end_s, then)

    def _end_pass(self, now_s: float) -> None:
        self._complete_pass(now_s)
        if self.batch.is_full_and_goes_on and not self._outbox and self._arrived_version == self._log.version:
            return self._decode(now_s, prefill_tokens=0, preemptions=0)  # as between_passes would, sooner
        self.between_passes(now_s)

    def _complete_pass(self, now_s: float) -> None:
        self._is_decoding = False
        for request in self.batch.complete_pass():
            if request in self.batch.away:
                request.waited_s += request.pause_s
                self._agenda.schedule(now_s + request.pause_s, partial(self._return, request))
            else:
                self._finish(now_s, request)

    def _return(self, request: Request, now_s: float) -> None:
        self.batch.note_back(request)
        self.look(now_s)

    def _finish(self, now_s: float, request: Request) -> None:
        request.runs, request.finished_s = self._log.runs_of(request.stints), now_s
        if self.recording is not None:
            self.recording.sample(self.worker_id, request, "length" if request.is_capped else "stop")
        group = request.group
        group.unfinished -= 1
        if not group.unfinished:
            self._outbox.append(group)
            self._exchange.finished(now_s, group)

    def _stay_busy(self, now_s: float, until_s: float, then: Handler) -> None:
        self._wake(now_s)
        self._busy_until_s = until_s
        self._agenda.schedule(until_s, then)

    def _sleep(self, now_s: float, reason: str) -> None:
        if reason != self._sleeps_for:
            self._wake(now_s)
            self._sleeps_for, self._asleep_since_s = reason, now_s

    def _wake(self, now_s: float) -> None:
        if self._sleeps_for is None:
            return
        self.waits_s[self._sleeps_for] += now_s - self._asleep_since_s
        if self.recording is not None:
            self.recording.activity(self.worker_id, "wait", self._asleep_since_s, now_s, self._sleeps_for)
        self._sleeps_for = None
