"""The handle of a recording, with every hook of the public API; `start_run` in `start.py` returns it.

No hook raises into the host or does I/O on its thread.
"""

from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from opentelemetry.sdk.trace import SpanProcessor

from rlscope_otel import conventions, exits, schema
from rlscope_otel.faults import Faults, is_one_of, shown
from rlscope_otel.phases import Phase, TrainStep, WeightUpdate
from rlscope_otel.recording import Recording
from rlscope_otel.samples import Sample

_FLUSH_TIMEOUT_S = 10.0


class Run:
    """One worker's recording. Started without a run folder it is inactive: every hook is a cheap no-op."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._phases = recording.phases
        self._faults = recording.faults
        self._engine_steps = recording.buffers["engine_steps"]
        self._deliveries = recording.buffers["deliveries"]
        self._queue_depths = recording.buffers["queue_depths"]
        self._stop_callbacks: list[Callable[[], None]] = []
        self.now_ns = recording.clock.now_ns

    @property
    def active(self) -> bool:
        """Whether this records: False without a run folder, after `stop`, and in a forked child."""
        return self._recording.active

    @property
    def run_id(self) -> str | None:
        """The id in run.json; None while the folder cannot be written, or if inactive."""
        return self._recording.run_id

    @property
    def run_dir(self) -> Path | None:
        """The run folder; None if inactive."""
        return self._recording.run_dir

    @property
    def worker_id(self) -> str | None:
        """The worker's name, with a suffix if the requested one was taken; None if inactive."""
        return self._recording.worker_id

    @property
    def role(self) -> str | None:
        """The worker's role; None if inactive."""
        return self._recording.role

    @property
    def faults(self) -> Faults:
        """Errors in the hooks of this run, counted by kind."""
        return self._faults

    @property
    def span_processor(self) -> SpanProcessor:
        """Add it to a TracerProvider of yours to record that provider's spans too."""
        return self._recording.processor

    def describe(self, **identity: object) -> None:
        """Set what was not known at the start, such as `kv_capacity_tokens` or `max_running`."""
        self._recording.describe(identity)

    def startup(self) -> Phase:
        """The worker is starting: loading weights, compiling, warming up."""
        return self.activity("startup")

    def wait(self, reason: str) -> Phase:
        """The worker waits. `reason`: one of `schema.WAIT_REASONS`, such as samples, backpressure or staleness_cap."""
        if not is_one_of(reason, schema.WAIT_REASONS):
            self._faults.note(
                "wait", f"unknown reason {shown(reason)}, recorded as NULL; known: {', '.join(schema.WAIT_REASONS)}"
            )
        return Phase(self._phases, conventions.ACTIVITY_SPANS["wait"], ((conventions.WAIT_REASON, reason),))

    def generate(self) -> Phase:
        """The worker generates samples. Only needed if no engine steps are recorded."""
        return self.activity("generate")

    def logprobs(self) -> Phase:
        """The worker computes log-probabilities of sampled tokens."""
        return self.activity("logprobs")

    def reward(self) -> Phase:
        """The worker computes rewards."""
        return self.activity("reward")

    def evaluation(self) -> Phase:
        """The worker evaluates the policy."""
        return self.activity("eval")

    def checkpoint(self) -> Phase:
        """The worker saves a checkpoint."""
        return self.activity("checkpoint")

    def activity(self, activity: str) -> Phase:
        """Any activity of `schema.ACTIVITIES`; an unknown one is recorded as `other`."""
        if not is_one_of(activity, tuple(conventions.ACTIVITY_SPANS)):
            known = ", ".join(schema.ACTIVITIES)
            self._faults.note("activity", f"unknown activity {shown(activity)}, recorded as 'other'; known: {known}")
            activity = "other"
        return Phase(self._phases, conventions.ACTIVITY_SPANS[activity])

    def train_step(
        self, step: int, *, version_in: int, samples: int | None = None, tokens: int | None = None
    ) -> TrainStep:
        """One optimizer step. It covers compute: put waits outside, or in a nested `wait`."""
        values = {"step": step, "version_in": version_in, "samples": samples, "tokens": tokens}
        pairs = ((conventions.TRAIN[column], value) for column, value in values.items())
        return TrainStep(self._phases, conventions.TRAIN_STEP, pairs)

    def publish_weights(self, version: int, label: str | None = None, *, bytes: int | None = None) -> WeightUpdate:
        """The trainer makes a policy version available to the samplers."""
        return self._weights("publish", version, label=label, bytes=bytes)

    def transfer_weights(self, version: int, label: str | None = None, *, bytes: int | None = None) -> WeightUpdate:
        """A policy version is transferred to an engine."""
        return self._weights("transfer", version, label=label, bytes=bytes)

    def apply_weights(
        self, version: int, label: str | None = None, *, paused: bool | None = None, kv: str | None = None
    ) -> WeightUpdate:
        """An engine loads a policy version. `paused`: whether generation was paused; `kv`: kept | recomputed."""
        return self._weights("apply", version, label=label, paused=paused, kv=kv)

    def weight_update_part(self, part: str, version: int) -> Phase:
        """A part of a publication or application, recorded inside or beside it: one of `schema.UPDATE_PARTS`."""
        if not is_one_of(part, schema.UPDATE_PARTS):
            known = ", ".join(schema.UPDATE_PARTS)
            self._faults.note("weight update", f"unknown part {shown(part)}, recorded as other; known: {known}")
            return self.activity("other")
        return self._weights(part, version)

    def sample(
        self,
        sample_id: str,
        group_id: str | None = None,
        segment: int = 0,
        prompt_tokens: int = 0,
        submitted_ns: int | None = None,
        version_source: str = "engine",
    ) -> Sample:
        """A handle for one segment of a sample; report its tokens to it as they are generated."""
        return Sample(
            self._recording.samples, sample_id, group_id, segment, prompt_tokens, submitted_ns, version_source
        )

    def engine_step(
        self,
        start_ns: int,
        end_ns: int,
        busy_ns: int | None = None,
        forward_passes: int | None = 1,
        running: int = 0,
        waiting: int = 0,
        decode_tokens: int = 0,
        prefill_tokens: int = 0,
        kv_used_tokens: int | None = None,
        preemptions: int | None = None,
        source: str | None = None,
    ) -> None:
        """One forward pass, or up to 1 s of passes with a constant number of running requests; by default all busy.

        `source="sampled"` marks a window polled from outside; there, without `busy_ns` the busy time is unknown.
        """
        try:
            busy_ns = end_ns - start_ns if busy_ns is None and source != "sampled" else busy_ns
        except Exception as error:  # A host's own number type may fail in any way.
            self._faults.note("engine step", error)
            self._engine_steps.drop()
            return
        self._engine_steps.add(
            (
                start_ns,
                end_ns,
                forward_passes,
                busy_ns,
                running,
                waiting,
                decode_tokens,
                prefill_tokens,
                kv_used_tokens,
                preemptions,
                source,
            )
        )

    def delivery(
        self,
        sample_id: str,
        outcome: str,
        taken_ns: int | None = None,
        queued_ns: int | None = None,
        step: int | None = None,
        consumer_version: int | None = None,
        reward: float | None = None,
        advantage: float | None = None,
    ) -> None:
        """A sample left the queue, now or at `taken_ns`. `outcome`: trained, dropped_stale, filtered or abandoned."""
        if not is_one_of(outcome, schema.DELIVERY_OUTCOMES):
            self._deliveries.drop()
            self._faults.note(
                "delivery",
                f"unknown outcome {shown(outcome)}, not recorded; known: {', '.join(schema.DELIVERY_OUTCOMES)}",
            )
            return
        taken_ns = self.now_ns() if taken_ns is None else taken_ns
        self._deliveries.add((sample_id, queued_ns, taken_ns, outcome, step, consumer_version, reward, advantage))

    def queue_depth(self, queue: str, depth: int, capacity: int | None = None) -> None:
        """The number of samples in a queue now, and its capacity."""
        self._queue_depths.add((queue, self.now_ns(), depth, capacity))

    def flush(self, timeout_s: float = _FLUSH_TIMEOUT_S) -> bool:
        """Write everything and wait for it; False if it failed or took longer than `timeout_s`."""
        return self._recording.flush(timeout_s)

    def stop(self, timeout_s: float = _FLUSH_TIMEOUT_S) -> bool:
        """Write everything, running samples as `unfinished`, and stop recording. Called at exit if not before."""
        while self.active and self._stop_callbacks:
            try:
                self._stop_callbacks.pop()()
            except Exception as error:  # Nothing of ours reaches the host.
                self._faults.note("stop", error)
        try:
            return self._recording.stop(timeout_s)
        finally:
            exits.unwatch(self)

    def before_stop(self, callback: Callable[[], None]) -> None:
        """Register a function to call when the run stops, while it still records."""
        self._stop_callbacks.append(callback)

    def abandon(self) -> None:
        """Stop recording without writing: in a forked child, the buffered rows belong to the parent."""
        self._recording.abandon()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def _weights(self, phase: str, version: int, **values: object) -> WeightUpdate:
        pairs = ((conventions.WEIGHTS[column], value) for column, value in {"version": version, **values}.items())
        return WeightUpdate(self._phases, conventions.WEIGHT_SPANS[phase], pairs)
