"""The two workers that one AReaL process is: the trainer, and the rollouts that it drives."""

import itertools
import sys
import threading
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from functools import partial
from types import ModuleType
from typing import Any

from rlscope_otel import exits
from rlscope_otel.faults import Faults
from rlscope_otel.integrations.host import inert_run, started_run, version_of
from rlscope_otel.integrations.request_ids import segments_of
from rlscope_otel.integrations.seams import Call, Seams, Watch
from rlscope_otel.recorder import Run
from rlscope_otel.samples import Sample

# AReaL gives the executor of its evaluations a cap that is none.
_NO_CAP = 10**9


class Workers:
    """The runs of this process; each is started when it is first needed."""

    def __init__(self) -> None:
        self.faults = Faults()
        self.rollout_gpus = 0
        self.version = 0
        """The last version that AReaL set."""
        self.single_controller = False
        self.batch: tuple[int | None, int | None] = (None, None)
        """Samples and tokens of the batch that this process took last, until a step takes it; None in other ranks."""
        self._trainer: Run | None = None
        self._rollout: Run | None = None

    @property
    def trainer(self) -> Run:
        """The trainer's run: the one that the script has started, else one from the environment."""
        if self._trainer is None or not self._trainer.active:
            live = [run for run in exits.live_runs() if run.active and run is not self._rollout]
            self._trainer = live[0] if live else self._started("trainer", None, {})
        return self._trainer

    @property
    def rollout(self) -> Run:
        """The rollouts' run; before there is an executor, one that records nothing."""
        return self._rollout if self._rollout is not None and self._rollout.active else inert_run()

    def begin_rollout(self, call: Call) -> None:
        """An executor begins: its rollouts are a worker, and what it is set to is the run's."""
        config = call.args[0].config
        environ = sys.modules.get("areal.utils.environ")
        self.single_controller = environ is not None and bool(environ.is_single_controller())
        if not self.rollout.active and config.max_head_offpolicyness < _NO_CAP:
            role = "sampler" if self.rollout_gpus else "controller"
            self._rollout = self._started(role, f"{self.trainer.worker_id}.rollout", _settings(config))

    def _started(self, role: str, worker_id: str | None, config: dict[str, Any]) -> Run:
        gpus = None if role == "trainer" else self.rollout_gpus
        about = {"framework": "areal", "framework_version": version_of("areal"), "config": config}
        return started_run(role, worker_id, gpu_count=gpus, **about)


WORKERS = Workers()


def now_ns() -> int:
    """The time of the rollouts' run, or the wall clock's before there is one."""
    return WORKERS.rollout.now_ns()


def _settings(config: Any) -> dict[str, Any]:
    return {
        "framework": "areal",
        "staleness_policy": "admission",
        "max_staleness": config.max_head_offpolicyness,
        "areal_consumer_batch_groups": config.consumer_batch_size,
        "areal_max_concurrent_groups": config.max_concurrent_rollouts or config.consumer_batch_size,
    }


# AReaL's trainer by its own timing scopes, `stats_tracker.record_timing(name)`.
#
# The scope is a context manager that a module attribute gives, so it is wrapped rather than watched: AReaL's own
# timing runs inside ours. A scope of an unknown name is an activity `other`.


_ACTIVITIES = {
    "critic_train_step": "train",
    "recompute_logp": "logprobs",
    "ref_logp": "logprobs",
    "teacher_logp": "logprobs",
    "critic_values": "logprobs",
    "save": "checkpoint",
    "checkpoint_for_recover": "checkpoint",
    "eval": "eval",
}


def watch_scopes(module: ModuleType) -> None:
    """Have every scope that is opened through AReaL's `stats_tracker` module recorded."""
    host: Callable[[str], AbstractContextManager[Any]] = module.record_timing

    @contextmanager
    def record_timing(key: str) -> Generator[Any]:
        """Open AReaL's scope, and record how long it took, unless it raised."""
        started = WORKERS.faults.attempt("scope", lambda: (WORKERS.version, WORKERS.trainer.now_ns()))
        with host(key) as value:
            yield value
        if started is not None:
            WORKERS.faults.attempt("scope", lambda: _record(WORKERS.trainer, key, *started))

    module.record_timing = record_timing  # pyright: ignore[reportAttributeAccessIssue]


def _record(run: Run, name: str, version: int, start_ns: int) -> None:
    now_ns = run.now_ns()
    if name == "rollout":
        run.wait("samples").between(start_ns, now_ns)
    elif name == "train_step":
        (samples, tokens), WORKERS.batch = WORKERS.batch, (None, None)
        step = run.train_step(version, version_in=version, samples=samples, tokens=tokens)
        step.record(version_out=version + 1)
        step.between(start_ns, now_ns)
    elif name == "update_weights":
        run.publish_weights(WORKERS.version, str(WORKERS.version)).between(start_ns, now_ns)
    else:
        run.activity(_ACTIVITIES.get(name, "other")).between(start_ns, now_ns)


# AReaL's tasks, the episodes in them, and what became of each: samples and deliveries.
#
# A task is one prompt; its workflow runs one episode for each sample of the group. An episode is one sample:
# `<task>/0`, `<task>/1`, ... in the order in which they begin, which is that of the trajectory's rows. All requests
# that an episode makes, one after the other or at once, are its segments.


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
        self.segments = segments_of(self.sample_id, task.group_id)


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
    return str(task_id) if WORKERS.single_controller or not run.active else f"{run.worker_id}/{task_id}"


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
    if context.is_eval or context.task_id is None or not WORKERS.rollout.active:
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
    episode = _episode.get()
    if episode is not None:
        prompt_tokens = len(call.args[1].input_ids)
        call.memo = WORKERS.rollout.sample(*next(episode.segments), prompt_tokens, call.started_ns, "segment")


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


def _finalized(call: Call) -> None:
    """AReaL has decided on a task: it waits to be taken, or is out."""
    if call.args[:1] != ("mark_finalized",):
        return
    run = WORKERS.rollout
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
    if call.error is not None:
        return
    version = int(call.args[0].staleness_manager.version_provider.get_version())
    samples = sum(_deliver(result, version) for result in call.result)
    masks = [result.trajectory.get("attention_mask") for result in call.result]
    WORKERS.batch = (samples, sum(int(mask.sum()) for mask in masks if mask is not None))


def _deliver(result: Any, version: int) -> int:
    """The samples of one task are trained on; returns how many they are.

    Where another process ran the task, its samples are those that the trajectory has rows for.
    """
    task = EPISODES.tasks.pop(result.task_id, None)
    rewards = [float(reward) for reward in result.trajectory["rewards"].flatten().tolist()]
    names = [f"{group_name(result.task_id)}/{row}" for row in range(len(rewards))] if task is None else task.kept()
    for row, sample_id in enumerate(names):
        WORKERS.rollout.delivery(
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
    WORKERS.rollout.queue_depth("results", EPISODES.waiting)


EXECUTOR = {"initialize": Watch(after=WORKERS.begin_rollout), "_create_workflow_task": Watch(before=_meet_workflow)}
MODULE = {"trace_session_event": Watch(before=_finalized)}


# The state of AReaL's rollouts: generating, waiting, or loading weights, from the calls of its StalenessManager.
#
# While any rollout runs, they generate. With none running they wait: for weights while submission is paused, for the
# staleness cap if it leaves no room, for prompts otherwise. An interval is written when the next one begins.


class _Rollouts:
    """Current state of the rollouts, with its start, and the weights that they are loading."""

    def __init__(self) -> None:
        self.state: str | None = None
        """`generate` or the reason of the wait. None before the first rollout."""
        self.since_ns = 0
        self.paused = False
        self.manager: Any = None
        self.applying_ns: tuple[int, int] | None = None
        self.parts_ns: dict[str, tuple[int, int]] = {}
        """Calls that stopped generation and let it go on, by part of the update."""
        # AReaL submits, finishes and pauses rollouts in three threads.
        self.lock = threading.Lock()


_rollouts = _Rollouts()


def _turn(manager: Any) -> None:
    """Start an interval of the rollouts' current state, and record the previous interval if the state changed."""
    run = WORKERS.rollout
    if run.active:
        with _rollouts.lock:
            _begin_stretch(run, _state_of(manager))


def _begin_stretch(run: Run, state: str) -> None:
    if state == _rollouts.state:
        return
    now_ns = run.now_ns()
    if _rollouts.state == "generate":
        run.activity("generate").between(_rollouts.since_ns, now_ns)
    elif _rollouts.state is not None:
        run.wait(_rollouts.state).between(_rollouts.since_ns, now_ns)
    _rollouts.state, _rollouts.since_ns = state, now_ns


def _state_of(manager: Any) -> str:
    if manager.get_stats().running > 0:
        return "generate"
    if _rollouts.paused:
        return "weights"
    return "requests" if manager.get_capacity() > 0 else "staleness_cap"


def _moved(call: Call) -> None:
    _rollouts.manager = call.args[0]
    _turn(call.args[0])


def _submits(paused: bool, call: Call) -> None:
    """Submission was paused, or goes on."""
    _rollouts.paused = paused
    _turn(call.args[0].staleness_manager)


def _generation_stopped(call: Call) -> None:
    _rollouts.applying_ns = (call.started_ns, call.started_ns)
    _rollouts.parts_ns.clear()


def _generation_continued(call: Call) -> None:
    if _rollouts.applying_ns is not None:
        _rollouts.applying_ns = (_rollouts.applying_ns[0], now_ns())
    _end_part("resume", call)


def _end_part(part: str, call: Call) -> None:
    if call.error is None and _rollouts.applying_ns is not None:
        _rollouts.parts_ns[part] = (call.started_ns, now_ns())


def _version_set(call: Call) -> None:
    """The weights that were taken while generation stood still now have a number."""
    run, version = WORKERS.rollout, int(call.argument(1, "version"))
    WORKERS.version = version
    applying_ns, _rollouts.applying_ns = _rollouts.applying_ns, None
    if applying_ns is not None:
        run.apply_weights(version, str(version), paused=True).between(*applying_ns)
        for part, span_ns in _rollouts.parts_ns.items():
            run.weight_update_part(part, version).between(*span_ns)
    if _rollouts.manager is not None:
        _turn(_rollouts.manager)


MANAGER = {
    "on_rollout_submitted": Watch(after=_moved),
    "on_rollout_accepted": Watch(after=_moved),
    "on_rollout_rejected": Watch(after=_moved),
}
DISPATCHER = {
    "active_submit_and_wait": Watch(after=_taken),
    "pause": Watch(after=partial(_submits, True)),
    "resume": Watch(after=partial(_submits, False)),
}
ENGINE = {
    "agenerate": Watch(before=_begin_request, after=_end_request),
    "pause_generation": Watch(before=_generation_stopped, after=partial(_end_part, "drain")),
    "continue_generation": Watch(after=_generation_continued),
    "set_version": Watch(after=_version_set),
}
CONTROLLER = {"set_version": Watch(after=_version_set)}
