"""verl's processes as workers of the run: the role of each Ray actor, its hooks, and what it reads from the settings.

Ray sends the classes of actors to their processes by value, watchers included: so these are functions and classes of
this module, and hold nothing of the process that installs them.
"""

import asyncio
import itertools
import os
import re
import time
from collections import deque
from collections.abc import Iterator
from contextvars import ContextVar
from functools import partial
from importlib import metadata
from typing import Any

from rlscope_otel.integrations.host import host_run, own_run, version_of
from rlscope_otel.integrations.request_ids import RequestName, segments_of
from rlscope_otel.integrations.seams import Call, Watch
from rlscope_otel.integrations.versions import VersionNames
from rlscope_otel.phases import TrainStep
from rlscope_otel.samples import Sample

# Where each engine looks for plug-ins.
_PLUG_INS = {"vllm": "vllm.general_plugins", "sglang": "sglang.srt.plugins"}


def setting(config: Any, path: str) -> Any:
    """Return a setting by its dotted path. None if this version of verl does not have it."""
    for name in path.split("."):
        try:
            config = config[name] if hasattr(config, "keys") else getattr(config, name)
        except Exception:  # OmegaConf has several errors for a name that is not there.
            return None
    return config


def gpus_of(config: Any, side: str) -> int | None:
    """GPUs of a side, `trainer` or `rollout`; None when the settings do not say."""
    nodes, per_node = setting(config, f"{side}.nnodes"), setting(config, f"{side}.n_gpus_per_node")
    return None if nodes is None or per_node is None else int(nodes) * int(per_node)


_begun_ns: deque[int] = deque(maxlen=1)
"""When this process began to record, until its loop begins."""


def begin(role: str, side: str | None, call: Call) -> None:
    """Start recording an actor that is made, with the GPUs of a side and the settings that the trace format has too."""
    config = call.argument(1, "config")
    gpu_count = 0 if side is None else gpus_of(config, side)
    run = host_run(role, gpu_count=gpu_count, framework="verl", framework_version=version_of("verl"))
    run.add_config(_settings(config))
    _begun_ns.append(run.now_ns())


def _end_startup(call: Call) -> None:
    """The loop of this process begins."""
    if _begun_ns:
        own_run().activity("startup").between(_begun_ns.pop(), call.started_ns)


def engines_are_recorded(config: Any) -> bool:
    """Whether the servers hold the GPUs in this run, as workers of their own, because a plug-in of ours is in them."""
    group = _PLUG_INS.get(setting(config, "actor_rollout_ref.rollout.name"))
    if group is None or os.environ.get("RLSCOPE_VERL_ENGINES") == "unrecorded":
        return False
    return any(point.name == "rlscope" for point in metadata.entry_points(group=group))


def _settings(config: Any) -> dict[str, Any]:
    batch = setting(config, "actor_rollout_ref.actor.ppo_mini_batch_size")
    batches = setting(config, "async_training.require_batches")
    group = setting(config, "actor_rollout_ref.rollout.n")
    known = None not in (batch, batches, group)
    return {
        "framework": "verl",
        "staleness_policy": "admission",
        "samples_per_step": batch * batches * group if known else None,
        "group_size": group,
        "max_output_tokens": setting(config, "actor_rollout_ref.rollout.response_length"),
        "max_running": setting(config, "actor_rollout_ref.rollout.max_num_seqs"),
        "gpus_per_engine": setting(config, "actor_rollout_ref.rollout.tensor_model_parallel_size"),
        "verl_staleness_threshold_ratio": setting(config, "async_training.staleness_threshold"),
        "verl_trigger_parameter_sync_steps": setting(config, "async_training.trigger_parameter_sync_step"),
        "verl_partial_rollout": setting(config, "async_training.partial_rollout"),
    }


def _passed(activity: str, switch: str | None, call: Call) -> None:
    """A call has ended that is an activity, unless the trainer's attribute `switch` is off."""
    if switch is None or getattr(call.args[0], switch):
        run = own_run()
        run.activity(activity).between(call.started_ns, run.now_ns())


def _pass(activity: str, switch: str | None = None) -> Watch:
    return Watch(after=partial(_passed, activity, switch))


# The samples of verl's agent loops: each request to a server is a segment, with the version that the server reports.
#
# `AgentLoopWorker.generate_sequences` runs one task for each row of its batch, in order, so the order in which they
# start is the row. Names travel in a context variable: a request belongs to the agent loop that awaits it.


_LIMITS = ("max_tokens", "max_new_tokens")
_ABORTED = ("aborted", "abort")
# Only the fully asynchronous rollouter names groups so. The other trainers may split a group over several workers, and
# then a row does not tell the sample.
_UID_PREFIX = "uid_sample_"


_rows: ContextVar[Iterator[int] | None] = ContextVar("rlscope_verl_rows", default=None)
_trajectory: ContextVar[Iterator[RequestName] | None] = ContextVar("rlscope_verl_trajectory", default=None)
"""Names of the requests of one row of a batch, while its agent loop runs."""
_versions = VersionNames()


def row_name(uid: object, row: int) -> str:
    """The sample of one row: the trainer names it the same way from what it takes out of the queue."""
    return f"{uid}/{row}"


def _begin_batch(call: Call) -> None:
    _rows.set(itertools.count())


def _begin_trajectory(call: Call) -> None:
    rows, uid = _rows.get(), str(call.kwargs.get("uid"))
    about: dict[str, Any] = call.argument(2, "trajectory")
    if rows is None or about.get("validate") or not uid.startswith(_UID_PREFIX):
        _trajectory.set(None)
        return
    _trajectory.set(segments_of(row_name(uid, next(rows)), uid))


def _begin_segment(call: Call) -> None:
    trajectory = _trajectory.get()
    if trajectory is None or "prompt_logprobs" in call.kwargs["sampling_params"]:
        return
    call.memo = own_run().sample(*next(trajectory), len(call.kwargs["prompt_ids"]), call.started_ns, "segment")


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


SERVER_CLIENT = {"generate": Watch(before=_begin_segment, after=_end_segment)}
AGENT_LOOP_WORKER = {
    "__init__": Watch(before=partial(begin, "controller", None)),
    "generate_sequences": Watch(before=_begin_batch),
    "_run_agent_loop": Watch(before=_begin_trajectory),
}


# verl's MessageQueue, in its own actor: how full it is, and which groups a full queue drops.
#
# The queue holds pickled bytes. A group is named by its `uid`, which is read out of the bytes without unpickling
# them: that would load tensors into the actor. What this module keeps mirrors the queue, item for item: verl's
# methods do not yield between changing the queue and returning, so nothing comes between.


QUEUE_NAME = "message_queue"

_UID = re.compile(rb"uid_sample_\d+_\d+")
# Pickle's opcode for a string of fewer than 256 bytes: the opcode, one byte of length, the text.
_SHORT_STRING = 0x8C


_waiting: deque[tuple[str | None, int]] = deque()
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
    begin("controller", None, call)


def _put(call: Call) -> None:
    if call.error is not None:
        return
    queue = call.args[0]
    if call.result is False:
        _drop(queue)
    _waiting.append((uid_in(call.argument(1, "sample")), own_run().now_ns()))
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
    if uid is None:
        return
    run = own_run()
    size = setting(queue.config, "actor_rollout_ref.rollout.n")
    if size is None:
        run.faults.note("verl queue", "the settings lack the group size: dropped groups are not recorded")
        return
    for row in range(int(size)):
        run.delivery(row_name(uid, row), "dropped_stale", queued_ns=queued_ns)


def _look(queue: Any) -> None:
    own_run().queue_depth(QUEUE_NAME, len(queue.queue), queue.max_queue_size)


QUEUE = {
    "__init__": Watch(before=_begin_queue),
    "put_sample": Watch(after=_put),
    "get_sample": Watch(after=_take),
    "clear_queue": Watch(after=_clear),
}


# verl's rollouter: whether it generates, waits at the cap or for a full queue, or evaluates.
#
# Its states are written one by one, at the latest when new weights arrive, so that a rollouter that is killed loses
# only the last one. It waits from the end of its last task (verl's `idle_start_time`) until new weights, or its
# monitor, let it continue; while some tasks still run, it generates.


_NS_PER_S = 1_000_000_000


class _Stretch:
    """Current state of this process's rollouter, with its start."""

    def __init__(self) -> None:
        self.since_ns: int | None = None
        """Up to when all is written down; None before generation and after it."""
        self.reason = "staleness_cap"
        """Why verl last decided to pause."""


_stretch = _Stretch()


def _begin_rollouter(call: Call) -> None:
    if engines_are_recorded(call.argument(1, "config")):
        begin("controller", None, call)
    else:
        begin("sampler", "rollout", call)


def _begin_generation(call: Call) -> None:
    _end_startup(call)
    _stretch.since_ns = call.started_ns


def _judge_pause(call: Call) -> None:
    """verl asked whether to pause: remember why, or that its monitor is about to end the pause."""
    rollouter = call.args[0]
    if call.result:
        over_cap = rollouter.staleness_samples >= rollouter.max_required_samples
        _stretch.reason = "staleness_cap" if over_cap else "backpressure"
    elif call.error is None and rollouter.paused:
        _close(call)


def _close(call: Call) -> None:
    """Write down what has passed: generating, then waiting if every task had ended."""
    if _stretch.since_ns is None:
        return
    run, rollouter = own_run(), call.args[0]
    now_ns = run.now_ns()
    since_ns, _stretch.since_ns = _stretch.since_ns, now_ns
    idle_from_ns = now_ns - round((time.time() - rollouter.idle_start_time) * _NS_PER_S)
    if not rollouter.paused or idle_from_ns < since_ns:
        run.activity("generate").between(since_ns, now_ns)
        return
    run.activity("generate").between(since_ns, idle_from_ns)
    run.wait(_stretch.reason).between(idle_from_ns, now_ns)


def _end_generation(call: Call) -> None:
    _close(call)
    _stretch.since_ns = None


ROLLOUTER = {
    "__init__": Watch(before=_begin_rollouter),
    "_streaming_generation_main": Watch(before=_begin_generation, after=_end_generation),
    "_should_pause_generation": Watch(after=_judge_pause),
    # The weights are new and the count of stale samples begins anew: the end of a version, and of any pause.
    "reset_staleness": Watch(before=_close),
    "do_validate": _pass("eval"),
}


# verl's trainer: what it waits for, its passes, its publications, and which samples each step trains on.
#
# verl drives the ranks from one process, which represents all trainer GPUs here; its times are those of its calls to
# the ranks. The samples of a step come from `addition_process`, which gets each group in the order in which it was
# taken from the queue, with its rows in the order of the agent loops; later verl reorders the batch.


class _Collecting:
    """Samples that this process's trainer has taken from the queue for its next step."""

    def __init__(self) -> None:
        self.trainer: Any = None
        self.last_taken_ns: int | None = None
        self.taken_ns: deque[int] = deque()
        """When each group was taken, for those that are not delivered yet."""


_collecting = _Collecting()


def _end_fit(call: Call) -> None:
    """verl now lets Ray kill this process: the last rows are written, but nobody waits for it here."""
    own_run().stop(timeout_s=0.0)


def _begin_collecting(call: Call) -> None:
    _collecting.trainer = call.args[0]
    _collecting.last_taken_ns = None
    _collecting.taken_ns.clear()


def _took(call: Call) -> None:
    if call.error is None:
        _collecting.last_taken_ns = own_run().now_ns()
        _collecting.taken_ns.append(_collecting.last_taken_ns)


def _end_collecting(call: Call) -> None:
    """Once the last group is there, the batch is unpickled and put together."""
    run = own_run()
    now_ns = run.now_ns()
    taken_ns = _collecting.last_taken_ns or now_ns
    run.wait("samples").between(call.started_ns, taken_ns)
    run.activity("other").between(taken_ns, now_ns)


def _deliver(call: Call) -> None:
    run, trainer = own_run(), _collecting.trainer
    if trainer is None:
        return
    group = call.argument(0, "output")
    taken_ns = _collecting.taken_ns.popleft() if _collecting.taken_ns else None
    rewards = _rewards(group)
    for row, uid in enumerate(group.non_tensor_batch["uid"]):
        run.delivery(
            row_name(uid, row),
            "trained",
            taken_ns,
            step=trainer.global_steps,
            consumer_version=trainer.current_param_version,
            reward=rewards[row] if rewards is not None else None,
        )


def _rewards(group: Any) -> list[float] | None:
    """Return the reward of each trajectory, the sum over its tokens. None if rewards are computed later."""
    if "rm_scores" not in group.batch.keys():  # noqa: SIM118  # a TensorDict is no mapping
        return None
    return group.batch["rm_scores"].sum(-1).tolist()


def _trained(call: Call) -> None:
    """One optimizer step; none while only the critic warms up."""
    run, trainer = own_run(), call.args[0]
    if call.error is not None or "update_actor" not in trainer.timing_raw:
        return
    batch = call.argument(1, "batch")
    version = int(trainer.current_param_version)
    tokens = batch.meta_info.get("global_token_num")
    step: TrainStep = run.train_step(
        trainer.global_steps, version_in=version, samples=len(batch), tokens=None if tokens is None else sum(tokens)
    )
    metrics: dict[str, Any] = trainer.metrics
    step.record(
        loss=metrics.get("actor/loss", metrics.get("actor/pg_loss")),
        grad_norm=metrics.get("actor/grad_norm"),
        entropy=metrics.get("actor/entropy"),
        clip_ratio=metrics.get("actor/pg_clipfrac"),
        truncated_ratio=metrics.get("response_length/clip_ratio"),
        reward_mean=None if trainer.reward_tensor is None else float(trainer.reward_tensor.sum(-1).mean()),
        version_out=version + (trainer.local_trigger_step >= trainer.trigger_parameter_sync_step),
    )
    step.between(call.started_ns, run.now_ns())


def _published(call: Call) -> None:
    """verl asks at every step and answers None when it was not yet time."""
    if call.result is not None:
        run, version = own_run(), call.args[0].current_param_version
        run.publish_weights(version, str(version)).between(call.started_ns, run.now_ns())


def _validated(call: Call) -> None:
    """verl calls it in every step: whether it is time to is decided inside."""
    run, trainer = own_run(), call.args[0]
    version, period = int(trainer.current_param_version), setting(trainer.config, "trainer.test_freq")
    due = call.argument(1, "val_before_train") or (period and period > 0 and version > 0 and version % period == 0)
    if due and trainer.local_trigger_step == 1:
        run.activity("eval").between(call.started_ns, run.now_ns())


TRAINER = {
    "__init__": Watch(before=partial(begin, "trainer", "trainer")),
    "fit": Watch(before=_end_startup, after=_end_fit),
    "_get_samples_from_queue": Watch(before=_begin_collecting, after=_end_collecting),
    "_fit_compute_reward": _pass("reward"),
    "_fit_compute_log_prob": _pass("logprobs"),
    "_fit_compute_ref_log_prob": _pass("logprobs", "use_reference_policy"),
    "_fit_compute_critic": _pass("logprobs", "use_critic"),
    "_fit_compute_advantage": _pass("other"),
    "_fit_update_critic": _pass("train", "use_critic"),
    "_fit_update_actor": Watch(after=_trained),
    "_fit_update_weights": Watch(after=_published),
    "_fit_validate": Watch(after=_validated),
    "_save_checkpoint": _pass("checkpoint"),
}
QUEUE_CLIENT = {"get_sample": Watch(after=_took)}
ASSEMBLY = {"addition_process": Watch(before=_deliver)}
