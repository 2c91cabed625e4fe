"""AReaL: `rlscope_otel.integrations.areal.instrument()` in the training script, before its trainer is made.

With AREAL_SPMD_MODE every rank runs the script. With a single controller it must also be called where the rollouts run:
in the module of the workflow, which AReaL imports there. Inert without RLSCOPE_RUN_DIR.

What is recorded, by this process as trainer and by a second worker `<name>.rollout` that stands for its rollouts:

- samples: each `RemoteInfEngine.agenerate` is a segment of the episode that awaits it, in the group of its task. Its
  versions are AReaL's `output_versions` (`version_source` segment): one for each part of the response that an update of
  weights cut off. AReaL reads a part's version after its reply has come, so a part whose reply is taken up only after
  the next `set_version` is tagged one too high; and where the server goes on with requests over an update, a part is
  tagged wholly with the later version. The servers' own hooks (vLLM, SGLang) do not have that error; where they record
  samples too, set RLSCOPE_SAMPLES=framework for them.
- deliveries: what `prepare_batch` takes is trained at the next step; rejected and failed tasks are filtered, abandoned.
- the trainer's scopes (`stats_tracker.record_timing`): waits for samples, steps, log-probabilities, publications,
  checkpoints, evaluations. AReaL has one step a version, so a step's number is the version that it starts from.
- the rollouts' life: generating, held by the staleness cap, out of prompts, held for weights; weights applied. With
  `instrument(rollout_gpus=8)` the rollout worker is a sampler that owns the GPUs of the servers; leave it out where
  the servers have a hook of their own, which tells more.
- run.json: `max_head_offpolicyness` as `max_staleness`, policy `admission`. It bounds the sum of samples, not each one:
  single tokens may be older, and are counted as over the cap.

Not recorded: losses; evaluation rollouts; agents that reach the engine through AReaL's proxy, which have no episode.

Run with areal 1.0.4 on a CPU: WorkflowExecutor, StalenessManager, GroupedRolloutWorkflow, `RemoteInfEngine.agenerate`
with its resume after an abort, `stats_tracker`, in one process, with own workflows and a stand-in for the servers'
HTTP. Not run: PPOTrainer, a single controller, several ranks, real servers.
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
    """Watch AReaL's classes, those already loaded and those to come. Nothing happens without a run folder, or twice.

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
