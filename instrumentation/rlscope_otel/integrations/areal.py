"""AReaL: `rlscope_otel.integrations.areal.instrument()` in the training script, before its trainer is made.

With AREAL_SPMD_MODE every rank runs the script. With a single controller, call it also where the rollouts run: in the
module of the workflow, which AReaL imports there. Does nothing without RLSCOPE_RUN_DIR.

Recorded, by this process as trainer and by a second worker `<name>.rollout` that represents its rollouts:

- samples: each `RemoteInfEngine.agenerate` is a segment of the episode that awaits it, in the group of its task. Its
  versions are AReaL's `output_versions` (`version_source` segment): one for each part of the response between weight
  updates. AReaL reads a part's version after its reply arrives, so a part whose reply is processed only after the next
  `set_version` gets a version one too high. If the server continues requests across an update, the whole part gets the
  later version. The servers' own hooks (vLLM, SGLang) do not have that error; if they record samples too, set
  RLSCOPE_SAMPLES=framework for them.
- deliveries: what `prepare_batch` takes is trained at the next step; rejected tasks are filtered, failed abandoned.
- the trainer's scopes (`stats_tracker.record_timing`): waits for samples, steps, log-probabilities, publications,
  checkpoints, evaluations. AReaL has one step per version, so a step's number is the version it starts from.
- the rollouts' states: generating, waiting for the staleness cap, for prompts or for weights; weights applied. With
  `instrument(rollout_gpus=8)` the rollout worker is a sampler that owns the servers' GPUs; omit it if the servers have
  a hook of their own, which records more.
- run.json: `max_head_offpolicyness` as `max_staleness`, policy `admission`. It bounds the total number of samples, not
  the age of each: single tokens may be older, and are counted as beyond the cap.

Not recorded: losses; evaluation rollouts; agents that reach the engine through AReaL's proxy, which have no episode.

Run with areal 1.0.4 on a CPU: WorkflowExecutor, StalenessManager, GroupedRolloutWorkflow, `RemoteInfEngine.agenerate`
with its resume after an abort, `stats_tracker`, in one process, with workflows of the test and simulated
HTTP servers. Not run: PPOTrainer, a single controller, several ranks, real servers.
"""

from types import ModuleType
from typing import Any

from rlscope_otel.integrations import areal_episodes, areal_rollouts, areal_trainer
from rlscope_otel.integrations.areal_workers import WORKERS, now_ns
from rlscope_otel.integrations.host import recording_wanted
from rlscope_otel.integrations.loading import when_loaded
from rlscope_otel.integrations.seams import Seams, Watch

_EXECUTOR = "areal.infra.workflow_executor"
_WATCHED: dict[str, dict[str, dict[str, Watch]]] = {
    _EXECUTOR: {
        "WorkflowExecutor": areal_episodes.EXECUTOR,
        "BatchTaskDispatcher": {**areal_episodes.DISPATCHER, **areal_rollouts.DISPATCHER},
        "": areal_episodes.MODULE,
    },
    "areal.infra.remote_inf_engine": {"RemoteInfEngine": {**areal_episodes.ENGINE, **areal_rollouts.ENGINE}},
    "areal.infra.controller.rollout_controller": {"RolloutController": areal_rollouts.CONTROLLER},
    "areal.infra.staleness_manager": {"StalenessManager": areal_rollouts.MANAGER},
}
"""By module and class (none: the module itself) the functions to watch."""

_watched_modules: set[str] = set()


def instrument(rollout_gpus: int = 0) -> None:
    """Watch AReaL's classes, whether loaded already or later. A no-op without a run folder, or if called again.

    `rollout_gpus`: GPUs of the inference servers that this process drives, for servers without a hook of their own.
    """
    if not recording_wanted():
        return
    WORKERS.rollout_gpus = rollout_gpus
    seams = Seams(WORKERS.faults, now_ns)
    areal_episodes.EPISODES.seams = seams
    for name in _WATCHED.keys() - _watched_modules:
        _watched_modules.add(name)
        when_loaded(name, lambda module: _watch(module, seams), WORKERS.faults)
    if "areal.utils.stats_tracker" not in _watched_modules:
        _watched_modules.add("areal.utils.stats_tracker")
        when_loaded("areal.utils.stats_tracker", areal_trainer.watch_scopes, WORKERS.faults)


def _watch(module: ModuleType, seams: Seams) -> None:
    for class_name, functions in _WATCHED[module.__name__].items():
        owner: Any = getattr(module, class_name) if class_name else module
        for function, watch in functions.items():
            seams.watch(owner, function, watch)
