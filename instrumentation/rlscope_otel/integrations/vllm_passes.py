"""The calls of a vLLM engine that come with every forward pass: scheduling, output and, in the host's process, the step.

A pass may take 4 ms and less, so nothing is done here that can be done later or once.
"""

from collections.abc import Callable
from typing import Any

from rlscope_otel.integrations.seams import Seams
from rlscope_otel.integrations.vllm_requests import Requests
from rlscope_otel.integrations.vllm_steps import Batch, Steps, prefill_tokens_of
from rlscope_otel.integrations.vllm_weights import Weights
from rlscope_otel.recorder import Run

# Far more passes than any engine has under way: what is older failed before it gave an output.
_MOST_SCHEDULED = 256


class Passes:
    """Records the passes of the one scheduler that `scheduler` gives."""

    def __init__(
        self,
        run: Run,
        scheduler: Callable[[], Any],
        weights: Weights,
        requests: Requests,
        steps: Steps,
        capacity_tokens: int | None,
    ) -> None:
        self._now_ns = run.now_ns
        self._own = scheduler
        self._weights = weights
        self._requests = requests
        self._steps = steps
        self._capacity_tokens = capacity_tokens
        self._batches: dict[int, Batch] = {}
        self._failed: Callable[[Callable[..., None], Exception], None] = lambda watcher, error: None

    def watch(self, seams: Seams, scheduler: type) -> None:
        """Watch the passes of schedulers of a class."""
        self._failed = seams.failed
        seams.wrap(scheduler, "schedule", self._scheduling)
        seams.wrap(scheduler, "update_from_output", self._putting_out)

    def stepping(self, is_own: Callable[[Any], bool], host: Callable[..., Any]) -> Callable[..., Any]:
        """`LLMEngine.step`: the host program's call, with all that vLLM does in it."""

        def step(engine: Any, *args: Any, **kwargs: Any) -> Any:
            if not is_own(engine):
                return host(engine, *args, **kwargs)
            self._steps.step_began(self._now_ns())
            try:
                return host(engine, *args, **kwargs)
            finally:
                try:
                    self._stepped()
                except Exception as error:  # Nothing of ours reaches the host.
                    self._failed(self._stepped, error)

        return step

    def _scheduling(self, host: Callable[..., Any]) -> Callable[..., Any]:
        own, scheduled = self._own, self._scheduled

        def schedule(scheduler: Any, *args: Any, **kwargs: Any) -> Any:
            output = host(scheduler, *args, **kwargs)
            if scheduler is own():
                try:
                    scheduled(scheduler, output)
                except Exception as error:  # Nothing of ours reaches the host.
                    self._failed(scheduled, error)
            return output

        return schedule

    def _putting_out(self, host: Callable[..., Any]) -> Callable[..., Any]:
        own, now_ns, put_out = self._own, self._now_ns, self._put_out

        def update_from_output(scheduler: Any, *args: Any, **kwargs: Any) -> Any:
            at_ns = now_ns()
            outputs = host(scheduler, *args, **kwargs)
            if scheduler is own():
                try:
                    put_out(scheduler, args[0] if args else kwargs["scheduler_output"], outputs, at_ns)
                except Exception as error:  # Nothing of ours reaches the host.
                    self._failed(put_out, error)
            return outputs

        return update_from_output

    def _scheduled(self, scheduler: Any, output: Any) -> None:
        tokens = output.total_num_scheduled_tokens
        if not tokens:
            return
        now_ns = self._now_ns()
        batches, new, running = self._batches, output.scheduled_new_reqs, len(output.num_scheduled_tokens)
        if len(batches) >= _MOST_SCHEDULED:
            batches.clear()
        preempted = getattr(output, "preempted_req_ids", None)
        capacity_tokens = self._capacity_tokens
        batches[id(output)] = Batch(
            now_ns,
            running,
            scheduler.get_request_counts()[1],
            # One token each. In the prompt it can only be a last chunk of one token, which costs what decoding does.
            0 if tokens == running and not new else prefill_tokens_of(output),
            None if capacity_tokens is None else round(scheduler.kv_cache_manager.usage * capacity_tokens),
            None if preempted is None else len(preempted),
            self._weights.pass_begins(),
        )
        if new:
            self._requests.scheduled(new, now_ns)

    def _put_out(self, scheduler: Any, scheduled: Any, outputs: Any, at_ns: int) -> None:
        batch = self._batches.pop(id(scheduled), None)
        if batch is None:
            return
        tokens = 0
        for of_client in outputs.values():
            tokens += self._requests.sampled(of_client.outputs, at_ns, batch.torn)
        steps = self._steps
        steps.pass_ended(batch, at_ns, tokens)
        if not steps.in_host_step:
            steps.row_ended(at_ns, is_idle(scheduler))

    def _stepped(self) -> None:
        scheduler = self._own()
        if scheduler is not None:
            self._steps.step_ended(self._now_ns(), is_idle(scheduler))


def is_idle(scheduler: Any) -> bool:
    """Whether a scheduler has no request left."""
    return not scheduler.has_unfinished_requests()
