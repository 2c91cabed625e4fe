"""The time of one vLLM engine: forward passes, the time between them, and why there are none.

`busy_ns` of a pass runs from the end of its scheduling to the arrival of its output at the scheduler: the forward pass
with sampling, the way to the workers and back, and the grammar mask if there is one. Where vLLM schedules ahead (async
scheduling, pipeline parallelism) a pass counts from the end of the pass before, so no time counts twice. It is host
time: a GPU that idles inside a pass is not seen. The rest of a row is vLLM's own time since the row before: output
processing, the input queue, scheduling. Without requests the engine waits for `requests`; a pause is a weight update
when one was begun in it, else a wait without a reason.
"""

from typing import Any

from rlscope_otel.recorder import Run

# The format's limit for a row of several passes; time further back is not vLLM working towards this pass.
_LONGEST_ROW_NS = 1_000_000_000


Batch = tuple[int, int, int, int, int | None, int | None, bool]
"""Batch of one forward pass, known once it is scheduled: time of scheduling, running and waiting requests, prompt
tokens, used tokens of the KV cache, preemptions, and whether its sampled tokens are torn. A plain tuple, because it is
created at every pass."""
KV_USED, TORN = 4, 6


def prefill_tokens_of(output: Any) -> int:
    """Tokens of a scheduler's output that are prompt: first chunks, later chunks, and what a preemption lost."""
    scheduled: dict[str, int] = output.num_scheduled_tokens
    if not output.scheduled_new_reqs and output.total_num_scheduled_tokens == len(scheduled):
        # One token each. In the prompt it can only be a last chunk of one token, which costs what decoding does.
        return 0
    drafts: dict[str, list[int]] = output.scheduled_spec_decode_tokens
    cached = output.scheduled_cached_reqs
    tokens = sum(scheduled[new.req_id] for new in output.scheduled_new_reqs)
    for request_id, sampled in zip(cached.req_ids, cached.num_output_tokens, strict=True):
        count = scheduled[request_id]
        if not sampled or count > 1 + len(drafts.get(request_id, ())):
            tokens += count
    return tokens


class Steps:
    """Where one engine's time goes, from the calls of its core in order."""

    def __init__(self, run: Run, records_idleness: bool, owns_its_process: bool) -> None:
        self._run = run
        self._records_idleness = records_idleness
        self._owns_its_process = owns_its_process
        """Whether time between passes is vLLM's; else it is the host program's, but for what `step_began` encloses."""
        self._recorded_ns: int | None = None
        """Up to where time is accounted for, when what follows belongs to the next pass."""
        self._last_output_ns = 0
        self.idle_since_ns: int | None = None
        """Since when there has been no request; None while there is one."""
        self._paused_since_ns: int | None = None
        self._updates_at_pause = 0
        self.in_host_step = False
        """Between `step_began` and `step_ended`."""
        self._row: tuple[int, int, int, Batch, int] | None = None
        """A pass that has ended: start, output, busy time, batch and tokens. What follows it may be part of its row."""

    def pass_ended(self, batch: Batch, output_ns: int, decode_tokens: int) -> None:
        """The output of a pass is there. Outside a step of the host, `row_ended` has to follow."""
        if self._row is not None:
            self.row_ended(self._row[1])
        busy_from_ns = start_ns = max(batch[0], self._last_output_ns)
        recorded_ns = self._recorded_ns
        if recorded_ns is not None and recorded_ns < start_ns and output_ns - recorded_ns <= _LONGEST_ROW_NS:
            start_ns = recorded_ns
        self._last_output_ns = self._recorded_ns = output_ns
        self._row = (start_ns, output_ns, output_ns - busy_from_ns, batch, decode_tokens)
        if self._paused_since_ns is not None:
            self._paused_since_ns = output_ns

    def step_began(self, at_ns: int) -> None:
        """The host program calls the engine: time up to `step_ended` is vLLM's."""
        self.in_host_step = True
        self._recorded_ns = at_ns

    def step_ended(self, at_ns: int, is_idle: bool) -> None:
        """The call has ended; the row of its pass covers it to its end."""
        self.in_host_step = False
        self.row_ended(at_ns, is_idle)

    def has_requests(self, at_ns: int) -> None:
        """A request came: the engine is idle no more."""
        if self.idle_since_ns is not None:
            self._end_idleness(at_ns)

    def has_none(self, at_ns: int) -> None:
        """The last request is gone without a pass."""
        if self.idle_since_ns is None and self._paused_since_ns is None:
            self.idle_since_ns = at_ns

    def was_paused(self, until_ns: int) -> None:
        """Note that something else took the engine's time until until_ns, and records that time itself."""
        self._recorded_ns = until_ns if self._owns_its_process else None
        self._last_output_ns = max(self._last_output_ns, until_ns)

    def paused(self, at_ns: int, updates_begun: int) -> None:
        """No new pass is scheduled from now on."""
        if self._paused_since_ns is None:
            self.has_requests(at_ns)
            self._paused_since_ns = at_ns
            self._updates_at_pause = updates_begun

    def resumed(self, at_ns: int, updates_begun: int, is_idle: bool) -> None:
        """Passes are scheduled again."""
        since_ns, self._paused_since_ns = self._paused_since_ns, None
        if since_ns is None:
            return
        self.was_paused(at_ns)
        if self._records_idleness:
            activity = "weight_update" if updates_begun > self._updates_at_pause else "wait"
            self._run.activity(activity).between(since_ns, at_ns)
        if is_idle:
            self.idle_since_ns = at_ns

    def close(self, at_ns: int, updates_begun: int) -> None:
        """Record what is still going on."""
        if self._row is not None:
            self.row_ended(self._row[1])
        self.has_requests(at_ns)
        self.resumed(at_ns, updates_begun, is_idle=False)

    def row_ended(self, end_ns: int, is_idle: bool = False) -> None:
        """The row of the last pass ends; `is_idle`: no request is left."""
        row, self._row = self._row, None
        if row is not None:
            start_ns, _, busy_ns, (_, running, waiting, prefill, kv_used, preemptions, _), decode = row
            self._run.engine_step(start_ns, end_ns, busy_ns, 1, running, waiting, decode, prefill, kv_used, preemptions)
            self._recorded_ns = end_ns if self._owns_its_process else None
        if is_idle and self._paused_since_ns is None and (row is not None or self.idle_since_ns is None):
            # A pass that was under way when the last request went keeps the engine busy to its end.
            self.idle_since_ns = end_ns

    def _end_idleness(self, at_ns: int) -> None:
        since_ns, self.idle_since_ns = self.idle_since_ns, None
        if since_ns is not None and since_ns < at_ns and self._records_idleness:
            self._run.wait("requests").between(since_ns, at_ns)
        self.was_paused(at_ns)
