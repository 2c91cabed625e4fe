"""A sampler process: admits prompts, runs the engine, takes new weights in flight, queues finished groups."""

import random
import time
from dataclasses import dataclass, field

import torch
from rlscope_otel import Run, Sample

from examples.pipeline_rl.counts import SamplerCounts
from examples.pipeline_rl.device import SlowDevice
from examples.pipeline_rl.engine import Engine, Sequence, finish_reason
from examples.pipeline_rl.gate import NO_OPEN_GROUP
from examples.pipeline_rl.groups import FinishedGroup, FinishedSample
from examples.pipeline_rl.links import Links
from examples.pipeline_rl.mailbox import NOTHING_YET
from examples.pipeline_rl.model import Model, flatten_weights
from examples.pipeline_rl.options import Options
from examples.pipeline_rl.task import PROMPT_TOKENS, draw_target, prompt_of

POLL_S = 0.001


@dataclass(slots=True, eq=False)
class OpenGroup:
    """A prompt whose responses are not all finished, or not yet in the queue."""

    group_id: str
    target: int
    admitted_version: int
    finished: list[Sequence] = field(default_factory=list)


class Sampler:
    """One engine and its small scheduler; everything happens between forward passes of one thread."""

    def __init__(self, options: Options, links: Links, index: int, run: Run) -> None:
        self.options, self.links, self.index, self.run = options, links, index, run
        self.counts = SamplerCounts(run.worker_id)
        self._random = random.Random(options.seed * 1000 + index)
        model = Model(options.shape).eval()
        self._weights = flatten_weights(model)
        self.engine = Engine(model, options.shape, options.slots)
        self._device = SlowDevice(options.slowdown_of(options.sampler_ids[index]))
        self._waiting: list[Sequence] = []
        self._outbox: list[OpenGroup] = []
        self._open: dict[str, OpenGroup] = {}
        self._handles: dict[str, Sample] = {}
        self._groups_started = 0
        self._share = len(range(index, options.groups_per_step, options.samplers))
        self._round_groups = 0

    def await_first_weights(self) -> None:
        """Block until the trainer has put the initial weights, version 0, into the mailbox."""
        while self.links.mailbox.version == NOTHING_YET and not self.links.stop.is_set():
            time.sleep(POLL_S)
        with self.links.mailbox.held() as version:
            self.links.mailbox.copy_into(self._weights)
        self.engine.version = version
        if self.options.stale_head:
            self.engine.model.pack_head()

    def generate(self) -> SamplerCounts:
        """Sample until told to stop."""
        start_cpu_s = time.process_time()
        while not self.links.stop.is_set():
            self.iterate()
        self.counts.samples_unfinished = len(self.engine.running) + len(self._waiting)
        self.counts.cpu_s = time.process_time() - start_cpu_s
        return self.counts

    def iterate(self) -> None:
        """Between two decode passes, and the second of them; or a wait when there is nothing to decode."""
        self._take_new_weights()
        iteration_start_ns = self.run.now_ns()
        self._deliver()
        self._admit()
        if self._waiting and self.engine.free_slots:
            iteration_start_ns = self._prefill(iteration_start_ns)
        if self.engine.running:
            self._decode(iteration_start_ns)
        else:
            self._wait()

    def _take_new_weights(self) -> None:
        mailbox = self.links.mailbox
        if mailbox.version == self.engine.version:
            return
        with mailbox.held() as version, self.run.apply_weights(version, paused=True, kv="kept") as update:
            mailbox.copy_into(self._weights)
            update.record(bytes=mailbox.size_bytes)
        self.engine.version = version
        self.counts.weight_updates += 1
        self._round_groups = 0

    def _deliver(self) -> None:
        """Move finished groups into the queue while it has room."""
        while self._outbox and self.links.gate.try_queue(self.index, self.options.group):
            group = self._outbox.pop(0)
            self.links.groups[0].send(_finished_group(group, self.run.now_ns()))
            del self._open[group.group_id]
            self._note_oldest()
            self.run.queue_depth("samples", self.links.gate.depth(), self.options.queue_capacity_samples)

    def _admit(self) -> None:
        """Start new groups while slots are free and nothing holds them back."""
        while len(self._waiting) < self.engine.free_slots and self._blocked_by() is None:
            if not self.links.gate.try_start(self.index, self.options.group, self.engine.version):
                return
            self._start_group()

    def _start_group(self) -> None:
        group_id = f"{self.index}-{self._groups_started}"
        group = OpenGroup(group_id, draw_target(self._random), self.engine.version)
        self._groups_started += 1
        self._round_groups += 1
        self._open[group_id] = group
        self._note_oldest()
        for member in range(self.options.group):
            sequence = Sequence(f"{group_id}-{member}", prompt_of(group.target))
            self._waiting.append(sequence)
            self._handles[sequence.sample_id] = self.run.sample(
                sequence.sample_id, group_id, prompt_tokens=PROMPT_TOKENS, submitted_ns=self.run.now_ns()
            )

    def _blocked_by(self) -> str | None:
        """Why no new group may start, as a wait reason; None when one may.

        The limit on what is in flight exists to bound staleness. Yet when a whole batch lies in the queue while it
        binds, the trainer is behind and would not be faster without it: that is backpressure.
        """
        gate, group = self.links.gate, self.options.group
        if self.options.synchronous and self._round_groups == self._share:
            return "barrier"
        if self._outbox or not gate.has_room(group):
            return "backpressure"
        if not gate.may_start(group, self.engine.version):
            return "staleness_cap" if gate.depth() < self.options.batch else "backpressure"
        return None

    def _wait(self) -> None:
        """Wait with one reason until it no longer holds or there are new weights to take."""
        reason = self._blocked_by()
        if reason is None:
            return
        with self.run.wait(reason):
            while self._blocked_by() == reason and not self._has_something_to_do():
                time.sleep(POLL_S)

    def _has_something_to_do(self) -> bool:
        room_for_outbox = bool(self._outbox) and self.links.gate.has_room(self.options.group)
        return room_for_outbox or self.links.mailbox.version != self.engine.version or self.links.stop.is_set()

    def _prefill(self, start_ns: int) -> int:
        """One forward pass over the prompts that fit; returns when it ended."""
        joining = self._waiting[: self.engine.free_slots]
        del self._waiting[: len(joining)]
        busy_start_ns = self.run.now_ns()
        for sequence in joining:
            self._handles[sequence.sample_id].started(busy_start_ns)
        with self._device.computing():
            prefill_tokens = self.engine.prefill(joining)
        return self._record_pass(
            start_ns, self.run.now_ns() - busy_start_ns, 0, prefill_tokens, len(self.engine.running)
        )

    def _decode(self, start_ns: int) -> None:
        """One forward pass over the running batch, and what follows from its tokens."""
        running = len(self.engine.running)
        busy_start_ns = self.run.now_ns()
        with self._device.computing():
            tokens, logprobs = self.engine.decode()
        busy_ns = self.run.now_ns() - busy_start_ns
        for sequence in self.engine.running:
            self._handles[sequence.sample_id].tokens(1, self.engine.version)
        for sequence in self.engine.accept(tokens, logprobs):
            self._finish(sequence)
        self.counts.tokens_generated += running
        self._record_pass(start_ns, busy_ns, running, 0, running)

    def _finish(self, sequence: Sequence) -> None:
        self._handles.pop(sequence.sample_id).finish(finish_reason(sequence))
        self.counts.samples_finished += 1
        group = self._open[sequence.sample_id.rpartition("-")[0]]
        group.finished.append(sequence)
        if len(group.finished) == self.options.group:
            self._outbox.append(group)
            self._note_oldest()

    def _record_pass(self, start_ns: int, busy_ns: int, decode_tokens: int, prefill_tokens: int, running: int) -> int:
        end_ns = self.run.now_ns()
        self.run.engine_step(
            start_ns,
            end_ns,
            busy_ns=busy_ns,
            running=running,
            waiting=len(self._waiting),
            decode_tokens=decode_tokens,
            prefill_tokens=prefill_tokens,
            kv_used_tokens=self.engine.kv_used_tokens,
        )
        self.counts.forward_passes += 1
        return end_ns

    def _note_oldest(self) -> None:
        everything = [group.admitted_version for group in self._open.values()]
        running = [group.admitted_version for group in self._open.values() if group not in self._outbox]
        self.links.gate.note_oldest(
            self.index, min(running, default=NO_OPEN_GROUP), min(everything, default=NO_OPEN_GROUP)
        )


def _finished_group(group: OpenGroup, queued_ns: int) -> FinishedGroup:
    samples = tuple(
        FinishedSample(sequence.sample_id, tuple(sequence.tokens), tuple(sequence.logprobs), tuple(sequence.versions))
        for sequence in group.finished
    )
    return FinishedGroup(group.group_id, group.target, samples, queued_ns)


def sample_until_stopped(options: Options, links: Links, index: int, run: Run) -> SamplerCounts:
    """The sampler's work between its start and its end."""
    with run.activity("startup"):
        torch.set_num_threads(1)
        torch.manual_seed(options.seed * 1000 + index + 1)
        sampler = Sampler(options, links, index, run)
        sampler.await_first_weights()
    return sampler.generate()
