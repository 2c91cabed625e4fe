"""AReaL's tasks, the episodes in them, and what became of each: samples and deliveries.

A task is one prompt; its workflow runs one episode for each sample of the group. An episode is one sample: `<task>/0`,
`<task>/1`, ... in the order in which they begin, which is that of the trajectory's rows. All requests that an episode
makes, one after the other or at once, are its segments.
"""

import itertools
import sys
from contextvars import ContextVar
from typing import Any

from rlscope_otel.integrations.areal_workers import WORKERS
from rlscope_otel.integrations.seams import Call, Seams, Watch
from rlscope_otel.recorder import Run
from rlscope_otel.samples import Sample

_REASONS = {"stop": "stop", "tool_calls": "stop", "length": "length", "abort": "abort"}


class _Task:
    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.begun: list[str] = []
        self.empty: set[str] = set()
        """Samples of the episodes that returned nothing."""
        self.accepted_ns: int | None = None

    def kept(self) -> list[str]:
        """The samples that the trajectory has a row for, in the order of its rows."""
        return [sample_id for sample_id in self.begun if sample_id not in self.empty]


class _Episode:
    def __init__(self, task: _Task) -> None:
        self.task = task
        self.sample_id = f"{task.group_id}/{len(task.begun)}"
        task.begun.append(self.sample_id)
        self.segments = itertools.count()


class _Episodes:
    """The tasks of this process that are not delivered yet."""

    def __init__(self) -> None:
        self.seams: Seams | None = None
        self.tasks: dict[int, _Task] = {}
        self.watched: set[type] = set()
        self.waiting = 0
        """Samples that are accepted and that no step has taken."""


EPISODES = _Episodes()
_episode: ContextVar[_Episode | None] = ContextVar("rlscope_areal_episode", default=None)


def group_name(task_id: int) -> str:
    """The group of a task. A single controller numbers tasks for all; else each process numbers its own."""
    run = WORKERS.rollout
    return str(task_id) if WORKERS.single_controller or run is None else f"{run.worker_id}/{task_id}"


def _begin_executor(call: Call) -> None:
    executor = call.args[0]
    WORKERS.begin_rollout(executor.config)


def _meet_workflow(call: Call) -> None:
    """A task begins: watch the class of its workflow. AReaL's own wrapper runs it once for each sample of the group."""
    workflow = call.args[1].workflow
    while type(workflow).__name__ == "GroupedRolloutWorkflow":
        workflow = workflow.workflow
    if type(workflow) not in EPISODES.watched and EPISODES.seams is not None:
        EPISODES.watched.add(type(workflow))
        EPISODES.seams.watch(type(workflow), "arun_episode", Watch(before=_begin_episode, after=_end_episode))


def _begin_episode(call: Call) -> None:
    context = sys.modules["areal.infra.workflow_context"].get()
    outer = _episode.get()
    if context.is_eval or context.task_id is None or WORKERS.rollout is None:
        _episode.set(None)
        return
    task = EPISODES.tasks.get(context.task_id)
    if task is None:
        task = EPISODES.tasks[context.task_id] = _Task(group_name(context.task_id))
    if outer is not None and outer.task is task:
        return  # A workflow that calls its parent class: one episode.
    call.memo = _Episode(task)
    _episode.set(call.memo)


def _end_episode(call: Call) -> None:
    episode: _Episode | None = call.memo
    if episode is not None and call.result is None:
        episode.task.empty.add(episode.sample_id)


def _begin_request(call: Call) -> None:
    run, episode = WORKERS.rollout, _episode.get()
    if run is None or episode is None:
        return
    segment, prompt_tokens = next(episode.segments), len(call.args[1].input_ids)
    call.memo = run.sample(episode.sample_id, episode.task.group_id, segment, prompt_tokens, call.started_ns, "segment")


def _end_request(call: Call) -> None:
    sample: Sample | None = call.memo
    if sample is None:
        return
    if call.error is not None:
        sample.finish("error" if isinstance(call.error, Exception) else "abort")
        return
    for version, tokens in itertools.groupby(call.result.output_versions):
        sample.tokens(len(list(tokens)), int(version))
    sample.finish(_REASONS.get(call.result.stop_reason))


def _finalised(call: Call) -> None:
    """AReaL has decided on a task: it waits to be taken, or is out."""
    run = WORKERS.rollout
    if run is None or call.args[:1] != ("mark_finalized",):
        return
    task_id, status = call.kwargs["task_id"], call.kwargs["status"]
    task = EPISODES.tasks.get(task_id)
    if task is None:
        return
    if status == "accepted":
        task.accepted_ns = run.now_ns()
        _wait(len(task.kept()))
        for sample_id in sorted(task.empty):
            run.delivery(sample_id, "filtered")
        return
    del EPISODES.tasks[task_id]
    for sample_id in task.begun:
        run.delivery(sample_id, "filtered" if status == "rejected" else "abandoned")


def _taken(call: Call) -> None:
    """A batch is complete: the next step trains on it, from the version that is set now."""
    run = WORKERS.rollout
    if run is None or call.error is not None:
        return
    version = int(call.args[0].staleness_manager.version_provider.get_version())
    samples = sum(_deliver(run, result, version) for result in call.result)
    masks = [result.trajectory.get("attention_mask") for result in call.result]
    WORKERS.batch = (samples, sum(int(mask.sum()) for mask in masks if mask is not None))


def _deliver(run: Run, result: Any, version: int) -> int:
    """The samples of one task are trained on; returns how many they are.

    Where another process ran the task, its samples are those that the trajectory has rows for.
    """
    task = EPISODES.tasks.pop(result.task_id, None)
    rewards = [float(reward) for reward in result.trajectory["rewards"].flatten().tolist()]
    names = [f"{group_name(result.task_id)}/{row}" for row in range(len(rewards))] if task is None else task.kept()
    for row, sample_id in enumerate(names):
        run.delivery(
            sample_id,
            "trained",
            queued_ns=None if task is None else task.accepted_ns,
            step=version,
            consumer_version=version,
            reward=rewards[row] if len(rewards) == len(names) else None,
        )
    if task is not None:
        _wait(-len(names))
    return len(names)


def _wait(samples: int) -> None:
    EPISODES.waiting += samples
    if WORKERS.rollout is not None:
        WORKERS.rollout.queue_depth("results", EPISODES.waiting)


EXECUTOR = {"initialize": Watch(after=_begin_executor), "_create_workflow_task": Watch(before=_meet_workflow)}
DISPATCHER = {"active_submit_and_wait": Watch(after=_taken)}
ENGINE = {"agenerate": Watch(before=_begin_request, after=_end_request)}
MODULE = {"trace_session_event": Watch(before=_finalised)}
