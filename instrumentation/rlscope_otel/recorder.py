"""The handle of a recording, with every hook of the public API; `start_run` in `start.py` returns it.

No hook raises into the host or does I/O on its thread.
"""

from opentelemetry.metrics import MeterProvider

from rlscope_otel import schema, spans
from rlscope_otel.clock import RunClock
from rlscope_otel.phases import Phase, TrainStep, WeightUpdate
from rlscope_otel.recording import Recording
from rlscope_otel.samples import Sample
from rlscope_otel.settings import Settings


class Run(Recording):
    """One worker's recording. Started without a run folder it is inactive: every hook is a cheap no-op."""

    def __init__(self, settings: Settings | None, clock: RunClock, meter_provider: MeterProvider | None = None) -> None:
        super().__init__(settings, clock, meter_provider)
        # Looked up once, for hooks that are called at every step.
        self._engine_steps = self._buffers["engine_steps"]
        self._deliveries = self._buffers["deliveries"]
        self._queue_depths = self._buffers["queue_depths"]

    def wait(self, reason: str) -> Phase:
        """The worker waits. `reason`: one of `schema.WAIT_REASONS`, such as samples, backpressure or staleness_cap."""
        self.faults.knows("wait", "reason", reason, schema.WAIT_REASONS, "recorded as NULL")
        return Phase(self._phases, spans.ACTIVITIES["wait"], {"reason": reason})

    def activity(self, activity: str) -> Phase:
        """The worker does one of `schema.ACTIVITIES`, such as startup, logprobs, reward, eval or checkpoint.

        An unknown one is recorded as `other`. `generate` is only needed if no engine steps are recorded.
        """
        if not self.faults.knows("activity", "activity", activity, schema.ACTIVITIES, "recorded as 'other'"):
            activity = "other"
        return Phase(self._phases, spans.ACTIVITIES[activity])

    def train_step(
        self, step: int, *, version_in: int, samples: int | None = None, tokens: int | None = None
    ) -> TrainStep:
        """One optimizer step. It covers compute: put waits outside, or in a nested `wait`.

        samples, tokens (prompt and response): None if they are those of the samples delivered to the step.
        """
        values = {"step": step, "version_in": version_in, "samples": samples, "tokens": tokens}
        return TrainStep(self._phases, spans.TRAIN, values)

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
        if not self.faults.knows("weight update", "part", part, schema.UPDATE_PARTS, "recorded as other"):
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
        return Sample(self._samples, sample_id, group_id, segment, prompt_tokens, submitted_ns, version_source)

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
        """One forward pass, or `forward_passes` within 1 s with as many running requests each; by default all busy.

        `source="sampled"` marks a window polled from outside; there, without `busy_ns` the busy time is unknown.
        """
        try:
            busy_ns = end_ns - start_ns if busy_ns is None and source != "sampled" else busy_ns
        except Exception as error:  # A host's own number type may fail in any way.
            self.faults.note("engine step", error)
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
    ) -> None:
        """A sample left the queue, now or at `taken_ns`. `outcome`: trained, dropped_stale, filtered or abandoned."""
        if not self.faults.knows("delivery", "outcome", outcome, schema.DELIVERY_OUTCOMES, "not recorded"):
            self._deliveries.drop()
            return
        taken_ns = self.now_ns() if taken_ns is None else taken_ns
        self._deliveries.add((sample_id, queued_ns, taken_ns, outcome, step, consumer_version, reward))

    def queue_depth(self, queue: str, depth: int, capacity: int | None = None) -> None:
        """The number of samples in a queue now, and its capacity."""
        self._queue_depths.add((queue, self.now_ns(), depth, capacity))

    def _weights(self, phase: str, version: int, **values: object) -> WeightUpdate:
        return WeightUpdate(self._phases, spans.WEIGHTS[phase], {"version": version, **values})
