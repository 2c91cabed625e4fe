"""The calls of a vLLM engine that come with every pass: scheduling, output and, in the host's process, the step.

A pass may take 4 ms, and after each one the processor's caches hold other things: what counts is how much code and data
a call touches. So it only notes what cannot be known later. Rows are made of the notes of many passes at once, before
anything else happens to the engine.
"""

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from rlscope_otel.integrations.seams import Seams
from rlscope_otel.integrations.vllm_requests import Requests
from rlscope_otel.integrations.weights import Weights
from rlscope_otel.recorder import Run

# The time of one vLLM engine: forward passes, the time between them, and why there are none.
#
# `busy_ns` of a pass runs from the end of its scheduling to the arrival of its output at the scheduler: the forward
# pass with sampling, the way to the workers and back, and the grammar mask if there is one. Where vLLM schedules
# ahead (async scheduling, pipeline parallelism) a pass counts from the end of the pass before, so no time counts
# twice. It is host time: a GPU that idles inside a pass is not seen. The rest of a row is vLLM's own time since the
# row before: output processing, the input queue, scheduling. Without requests the engine waits for `requests`; a
# pause is a weight update when one was begun in it, else a wait without a reason.


# The format's limit for a row of several passes; time further back is not vLLM working towards this pass.
_LONGEST_ROW_NS = 1_000_000_000


Batch = tuple[int, int, int, int | None, int | None, int | None, bool]
"""Batch of one forward pass, known once it is scheduled: time of scheduling, running and waiting requests, prompt
tokens (None if every request is scheduled for one token), free blocks of the KV cache if known, preemptions, and
whether its sampled tokens are torn. A plain tuple, because it is created at every pass."""
PREFILL, TORN = 3, 6
Note = tuple[Batch, int, int, int | None, int | None, bool]
"""A pass: its batch, time of its output, tokens, start and end of the host's step, and whether no request is left.

Times are readings of the monotonic clock, to which the clock's offset is added later. A step of several passes starts
with the first pass and ends with the last.
"""


def prefill_tokens_of(output: Any) -> int:
    """Tokens of a scheduler's output that are prompt: first chunks, later chunks, and what a preemption lost."""
    scheduled: dict[str, int] = output.num_scheduled_tokens
    drafts: dict[str, list[int]] = output.scheduled_spec_decode_tokens
    cached = output.scheduled_cached_reqs
    tokens = sum(scheduled[new.req_id] for new in output.scheduled_new_reqs)
    for request_id, sampled in zip(cached.req_ids, cached.num_output_tokens, strict=True):
        count = scheduled[request_id]
        if not sampled or count > 1 + len(drafts.get(request_id, ())):
            tokens += count
    return tokens


@dataclass(slots=True)
class Steps:
    """Where one engine's time goes, from the calls of its core in order."""

    _run: Run
    _records_idleness: bool
    _owns_its_process: bool
    """Whether time between passes is vLLM's; else it is the host program's, but for what a step encloses."""
    _capacity_tokens: int | None
    """Size of the KV cache; None if it is unknown."""
    blocks: int
    """Number of blocks of the KV cache, except one that is never used; 0 if it is unknown."""
    _recorded_ns: int | None = None
    """Up to where time is accounted for, when what follows belongs to the next pass."""
    _last_output_ns: int = 0
    idle_since_ns: int | None = None
    """Since when there has been no request; None while there is one."""
    _paused_since_ns: int | None = None
    _updates_at_pause: int = 0
    _in_host_step: bool = False
    _row: tuple[int, int, int, Batch, int] | None = None
    """A pass that has ended: start, output, busy time, batch and tokens. What follows it may be part of its row."""

    def passed(self, note: Note, offset_ns: int) -> None:
        """A pass has ended, and with it the step of the host if the note has its end. offset_ns: of the clock."""
        batch, output_ns, tokens, began_ns, ended_ns, is_last = note
        output_ns += offset_ns
        if began_ns is not None:
            self.step_began(began_ns + offset_ns)
        if self._row is not None:
            self._end_row(self._row[1])
        busy_from_ns = start_ns = max(batch[0] + offset_ns, self._last_output_ns)
        recorded_ns = self._recorded_ns
        if recorded_ns is not None and recorded_ns < start_ns and output_ns - recorded_ns <= _LONGEST_ROW_NS:
            start_ns = recorded_ns
        self._last_output_ns = self._recorded_ns = output_ns
        self._row = (start_ns, output_ns, output_ns - busy_from_ns, batch, tokens)
        if self._paused_since_ns is not None:
            self._paused_since_ns = output_ns
        if ended_ns is not None:
            self.step_ended(ended_ns + offset_ns, is_last)
        elif not self._in_host_step:
            self._end_row(output_ns, is_last)

    def step_began(self, at_ns: int) -> None:
        """The host program calls the engine: time up to `step_ended` is vLLM's."""
        self._in_host_step = True
        self._recorded_ns = at_ns

    def step_ended(self, at_ns: int, is_idle: bool) -> None:
        """The call has ended; the row of its pass covers it to its end."""
        self._in_host_step = False
        self._end_row(at_ns, is_idle)

    def has_requests(self, at_ns: int) -> None:
        """A request came: the engine is idle no more."""
        since_ns = self.idle_since_ns
        if since_ns is None:
            return
        self.idle_since_ns = None
        if since_ns < at_ns and self._records_idleness:
            self._run.wait("requests").between(since_ns, at_ns)
        self.was_paused(at_ns)

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
            self._end_row(self._row[1])
        self.has_requests(at_ns)
        self.resumed(at_ns, updates_begun, is_idle=False)

    def _end_row(self, end_ns: int, is_idle: bool = False) -> None:
        """End the row of the last pass; `is_idle`: no request is left."""
        row, self._row = self._row, None
        if row is not None:
            start_ns, _, busy_ns, (_, running, waiting, prefill, free_blocks, preemptions, _), decode = row
            kv_used: int | None = None
            if free_blocks is not None and self._capacity_tokens is not None:
                kv_used = round((1.0 - free_blocks / self.blocks) * self._capacity_tokens)
            self._run.engine_step(
                start_ns, end_ns, busy_ns, 1, running, waiting, decode, prefill or 0, kv_used, preemptions
            )
            self._recorded_ns = end_ns if self._owns_its_process else None
        if is_idle and self._paused_since_ns is None and (row is not None or self.idle_since_ns is None):
            # A pass that was under way when the last request went keeps the engine busy to its end.
            self.idle_since_ns = end_ns


# Far more passes than any engine has under way: what is older failed before it gave an output.
_MOST_SCHEDULED = 256
_MOST_NOTED = 64
# A process that is killed loses no more than this beside the last flush interval.
_LONGEST_NOTED_NS = 250_000_000


class Passes:
    """Records the passes of the one scheduler that `scheduler` gives."""

    def __init__(
        self, run: Run, scheduler: Callable[[], Any], weights: Weights, requests: Requests, steps: Steps
    ) -> None:
        self._read_ns, self._offset_ns = run.clock.read_ns, run.clock.offset_ns
        self._own = scheduler
        self._weights = weights
        self._requests = requests
        self._steps = steps
        self._blocks = steps.blocks
        self._batches: dict[int, Batch] = {}
        self._notes: list[Note] = []
        self._began_ns: int | None = None
        """When the host's step of the moment began, as long as it is neither noted nor known to `steps`."""
        self._in_step = False
        self._last: tuple[Batch, int, int, int | None] | None = None
        """The last pass of the host's step of the moment: it is noted with the end of the step."""
        self._may_be_last = False
        self._failed: Callable[[Callable[..., None], Exception], None] = lambda watcher, error: None

    def watch(self, seams: Seams, scheduler: type) -> None:
        """Watch the passes of schedulers of a class."""
        self._failed = seams.failed
        for name, then in (("schedule", self._scheduled), ("update_from_output", self._put_out)):
            seams.wrap(scheduler, name, partial(telling, self._own, then, self._read_ns, seams))

    def settle(self) -> None:
        """Make rows of what is noted: something else than a pass happens to the engine."""
        self._note_last()
        if self._notes:
            notes, self._notes = self._notes, []
            for note in notes:
                self._steps.passed(note, self._offset_ns)
        if self._began_ns is not None:
            self._steps.step_began(self._began_ns + self._offset_ns)
            self._began_ns = None

    def stepping(self, is_own: Callable[[Any], bool], host: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap `LLMEngine.step`: the host program's call, with all that vLLM does in it.

        is_own: says whether an engine is the recorded one. That one is known by its first step; others are asked each
        time.
        """
        read_ns, own = self._read_ns, _nothing

        def step(engine: Any, *args: Any, **kwargs: Any) -> Any:
            """Step as vLLM does, then note its end."""
            nonlocal own
            if own() is not engine:
                if not is_own(engine):
                    return host(engine, *args, **kwargs)
                own = weakref.ref(engine)
            self._began_ns, self._in_step = read_ns(), True
            try:
                return host(engine, *args, **kwargs)
            finally:
                try:
                    self._stepped(read_ns())
                except Exception as error:  # Nothing of ours reaches the host.
                    self._failed(self._stepped, error)

        return step

    def _scheduled(self, scheduler: Any, _began_ns: int, output: Any, *_args: Any, **_kwargs: Any) -> None:
        tokens = output.total_num_scheduled_tokens
        if not tokens:
            return
        at_ns = self._read_ns()
        batches, new, weights = self._batches, output.scheduled_new_reqs, self._weights
        running = len(output.num_scheduled_tokens)
        if len(batches) >= _MOST_SCHEDULED:
            batches.clear()
        preempted = getattr(output, "preempted_req_ids", None)
        batches[id(output)] = (
            at_ns,
            running,
            scheduler.get_request_counts()[1],
            # One token each. In the prompt it can only be a last chunk of one token, which costs what decoding does.
            None if tokens == running and not new else prefill_tokens_of(output),
            # As `usage` of the manager has it, which is three calls.
            scheduler.kv_cache_manager.block_pool.free_block_queue.num_free_blocks if self._blocks else None,
            None if preempted is None else len(preempted),
            weights.is_changing and weights.pass_begins(),
        )
        if new:
            self._requests.scheduled(new, at_ns + self._offset_ns)

    def _put_out(
        self, scheduler: Any, at_ns: int, outputs: Any, scheduler_output: Any, *_args: Any, **_kwargs: Any
    ) -> None:
        batch = self._batches.pop(id(scheduler_output), None)
        if batch is None:
            return
        tokens, has_ended = 0, False
        # The scheduler lists the requests that ended since its last pass. If there are none, skip the outputs.
        may_have_ended = getattr(scheduler, "finished_req_ids", True)
        for of_client in outputs.values():
            given = of_client.outputs
            if batch[PREFILL] is None and not may_have_ended and not batch[TORN]:
                # Each of these requests was scheduled for one token, and goes on.
                tokens += len(given)
                continue
            tokens += sum(len(output.new_token_ids) for output in given)
            ended = [output for output in given if output.finish_reason is not None] if may_have_ended else []
            if ended or batch[TORN]:
                has_ended = True
                self._requests.sampled(given, ended, at_ns + self._offset_ns, batch[TORN])
        may_be_last = has_ended or self._steps.idle_since_ns is not None
        began_ns, self._began_ns = self._began_ns, None
        if self._in_step:
            self._note_last()
            self._last, self._may_be_last = (batch, at_ns, tokens, began_ns), may_be_last
        else:
            self._note((batch, at_ns, tokens, began_ns, None, may_be_last and is_idle(scheduler)))

    def _stepped(self, at_ns: int) -> None:
        self._in_step = False
        last, self._last = self._last, None
        scheduler = self._own()
        if scheduler is None:
            return
        if last is not None:
            self._note((*last, at_ns, self._may_be_last and is_idle(scheduler)))
        else:
            self.settle()
            self._steps.step_ended(at_ns + self._offset_ns, is_idle(scheduler))

    def _note(self, note: Note) -> None:
        notes, is_last = self._notes, note[-1]
        notes.append(note)
        if is_last or len(notes) >= _MOST_NOTED or note[1] - notes[0][1] > _LONGEST_NOTED_NS:
            self.settle()

    def _note_last(self) -> None:
        """Note the last pass of a step that is not its end, because another pass or something else follows."""
        if self._last is not None:
            self._notes.append((*self._last, None, False))
            self._last = None


def telling(
    own: Callable[[], Any],
    then: Callable[..., None],
    read_ns: Callable[[], int],
    seams: Seams,
    host: Callable[..., Any],
) -> Callable[..., Any]:
    """Wrap a method of schedulers, which comes with every pass and is too frequent for a `Watch`.

    own: gives the recorded scheduler. then: is told of its calls: the scheduler, when the call began by `read_ns`, its
    result and its arguments.
    """

    def told(scheduler: Any, *args: Any, **kwargs: Any) -> Any:
        """Do as vLLM does, then tell."""
        began_ns = read_ns()
        result = host(scheduler, *args, **kwargs)
        if scheduler is own():
            try:
                then(scheduler, began_ns, result, *args, **kwargs)
            except Exception as error:  # Nothing of ours reaches the host.
                seams.failed(then, error)
        return result

    return told


def blocks_of(scheduler: Any) -> int:
    """Return the number of blocks of the KV cache, except one that is never used; 0 if they cannot be counted."""
    pool = getattr(getattr(scheduler, "kv_cache_manager", None), "block_pool", None)
    blocks = getattr(pool, "num_gpu_blocks", None)
    free = getattr(getattr(pool, "free_block_queue", None), "num_free_blocks", None)
    return max(0, blocks - 1) if isinstance(blocks, int) and isinstance(free, int) else 0


def is_idle(scheduler: Any) -> bool:
    """Return whether a scheduler has no request left."""
    return not scheduler.has_unfinished_requests()


def _nothing() -> None:
    """Stand for a weak reference to an object that was never there."""
