"""verl's MessageQueue, in its own actor: how full it is, and which groups a full queue drops.

The queue holds pickled bytes. A group is named by its `uid`, which is read out of the bytes without unpickling them:
that would load tensors into the actor. What this module keeps mirrors the queue, item for item: verl's methods do not
yield between changing the queue and returning, so nothing comes between.
"""

import re
from collections import deque
from typing import Any

from rlscope_otel.integrations.host import live_run
from rlscope_otel.integrations.seams import Call, Watch
from rlscope_otel.integrations.verl_processes import argument, begin, setting
from rlscope_otel.integrations.verl_samples import row_name

QUEUE_NAME = "message_queue"

_UID = re.compile(rb"uid_sample_\d+_\d+")
# Pickle's opcode for a string of fewer than 256 bytes: the opcode, one byte of length, the text.
_SHORT_STRING = 0x8C


_waiting: deque[tuple[str | None, int | None]] = deque()
"""The groups in this process's queue and when they came, oldest first; None for what names none, as verl's end mark."""


def uid_in(pickled: object) -> str | None:
    """The `uid` of a pickled RolloutSample; None for anything else."""
    if not isinstance(pickled, bytes):
        return None
    for found in _UID.finditer(pickled):
        start, text = found.start(), found.group()
        if start >= 2 and pickled[start - 2] == _SHORT_STRING and pickled[start - 1] == len(text):
            return text.decode()
    return None


def _begin_queue(call: Call) -> None:
    _waiting.clear()
    begin("controller", argument(call, 1, "config"))


def _put(call: Call) -> None:
    if call.error is not None:
        return
    queue = call.args[0]
    if call.result is False:
        _drop(queue)
    run = live_run()
    _waiting.append((uid_in(argument(call, 1, "sample")), None if run is None else run.now_ns()))
    _look(queue)


def _take(call: Call) -> None:
    if call.error is None and call.result is not None:
        _waiting.popleft()
        _look(call.args[0])


def _clear(call: Call) -> None:
    _waiting.clear()
    _look(call.args[0])


def _drop(queue: Any) -> None:
    """The queue was full and let its oldest group go."""
    uid, queued_ns = _waiting.popleft()
    run = live_run()
    if run is None or uid is None:
        return
    size = setting(queue.config, "actor_rollout_ref.rollout.n")
    if size is None:
        run.faults.note("verl queue", "the settings lack the group size: dropped groups are not recorded")
        return
    for row in range(int(size)):
        run.delivery(row_name(uid, row), "dropped_stale", queued_ns=queued_ns)


def _look(queue: Any) -> None:
    run = live_run()
    if run is not None:
        run.queue_depth(QUEUE_NAME, len(queue.queue), queue.max_queue_size)


QUEUE = {
    "__init__": Watch(before=_begin_queue),
    "put_sample": Watch(after=_put),
    "get_sample": Watch(after=_take),
    "clear_queue": Watch(after=_clear),
}
