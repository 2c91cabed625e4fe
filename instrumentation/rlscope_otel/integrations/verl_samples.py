"""The samples of verl's agent loops: each request to a server is a segment, with the version that the server reports.

`AgentLoopWorker.generate_sequences` runs one task for each row of its batch, in order, so the order in which they start
is the row. Names travel in a context variable: a request belongs to the agent loop that awaits it.
"""

import asyncio
import itertools
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

from rlscope_otel.integrations.host import live_run
from rlscope_otel.integrations.seams import Call, Watch
from rlscope_otel.integrations.verl_processes import argument, begin
from rlscope_otel.integrations.versions import VersionNames
from rlscope_otel.samples import Sample

_LIMITS = ("max_tokens", "max_new_tokens")
_ABORTED = ("aborted", "abort")
# Only the fully asynchronous rollouter names groups so. The other trainers may split a group over several workers, and
# then a row does not tell the sample.
_UID_PREFIX = "uid_sample_"


class Trajectory:
    """One row of a batch while its agent loop runs."""

    __slots__ = ("group_id", "sample_id", "segments")

    def __init__(self, group_id: str, sample_id: str) -> None:
        self.group_id = group_id
        self.sample_id = sample_id
        self.segments = itertools.count()


_rows: ContextVar[Iterator[int] | None] = ContextVar("rlscope_verl_rows", default=None)
_trajectory: ContextVar[Trajectory | None] = ContextVar("rlscope_verl_trajectory", default=None)
_versions = VersionNames()


def row_name(uid: object, row: int) -> str:
    """The sample of one row: the trainer names it the same way from what it takes out of the queue."""
    return f"{uid}/{row}"


def _begin_worker(call: Call) -> None:
    begin("controller", argument(call, 1, "config"))


def _begin_batch(call: Call) -> None:
    _rows.set(itertools.count())


def _begin_trajectory(call: Call) -> None:
    rows, uid = _rows.get(), str(call.kwargs.get("uid"))
    about: dict[str, Any] = argument(call, 2, "trajectory")
    if rows is None or about.get("validate") or not uid.startswith(_UID_PREFIX):
        _trajectory.set(None)
        return
    _trajectory.set(Trajectory(uid, row_name(uid, next(rows))))


def _begin_segment(call: Call) -> None:
    run, trajectory = live_run(), _trajectory.get()
    if run is None or trajectory is None or "prompt_logprobs" in call.kwargs["sampling_params"]:
        return
    call.memo = run.sample(
        trajectory.sample_id,
        trajectory.group_id,
        next(trajectory.segments),
        len(call.kwargs["prompt_ids"]),
        call.started_ns,
        "segment",
    )


def _end_segment(call: Call) -> None:
    sample: Sample | None = call.memo
    if sample is None:
        return
    if call.error is not None:
        sample.finish("abort" if isinstance(call.error, asyncio.CancelledError) else "error")
        return
    output = call.result
    extra: dict[str, Any] = output.extra_fields
    sample.tokens(len(output.token_ids), _versions.ordinal_of(extra.get("global_steps")))
    preemptions = output.num_preempted
    sample.finish(
        _reason(output, call.kwargs["sampling_params"]),
        preemptions=preemptions if preemptions is not None and preemptions >= 0 else None,
        cached_tokens=extra.get("num_cached_tokens"),
    )


def _reason(output: Any, sampling_params: dict[str, Any]) -> str | None:
    """verl says `completed` for both a stop and a full budget."""
    if output.stop_reason in _ABORTED:
        return "abort"
    budget = next((sampling_params[name] for name in _LIMITS if sampling_params.get(name) is not None), None)
    if budget is not None and len(output.token_ids) >= budget:
        return "length"
    return output.stop_reason if output.stop_reason in ("stop", "length") else "stop"


CLIENT = {"generate": Watch(before=_begin_segment, after=_end_segment)}
WORKER = {
    "__init__": Watch(before=_begin_worker),
    "generate_sequences": Watch(before=_begin_batch),
    "_run_agent_loop": Watch(before=_begin_trajectory),
}
