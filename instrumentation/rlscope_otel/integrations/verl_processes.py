"""verl's processes as workers of the run: the role of each Ray actor, and what it reads from verl's settings."""

import os
import time
from importlib import metadata
from typing import Any

from rlscope_otel.integrations.host import host_run, live_run
from rlscope_otel.integrations.seams import Call
from rlscope_otel.recorder import Run

# Where each engine looks for plug-ins.
_PLUG_INS = {"vllm": "vllm.general_plugins", "sglang": "sglang.srt.plugins"}


def actor_class(found: Any) -> Any:
    """The class whose methods an actor runs: Ray's decorator leaves a handle in its place."""
    ray_metadata = getattr(found, "__ray_metadata__", None)
    return found if ray_metadata is None else ray_metadata.modified_class


def now_ns() -> int:
    """The time of this process's run; the wall clock before it has one."""
    run = live_run()
    return time.time_ns() if run is None else run.now_ns()


def argument(call: Call, position: int, name: str) -> Any:
    """An argument, however the host passed it; None when it did not. `self` of a method is position 0."""
    return call.args[position] if len(call.args) > position else call.kwargs.get(name)


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


def begin(role: str, config: Any, gpu_count: int | None = 0) -> Run:
    """Start recording this process, with the verl settings that the trace format has too."""
    settings = {name: value for name, value in _settings(config).items() if value is not None}
    return host_run(role, gpu_count=gpu_count, framework="verl", framework_version=_version(), config=settings)


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


def _version() -> str | None:
    try:
        return metadata.version("verl")
    except metadata.PackageNotFoundError:
        return None
