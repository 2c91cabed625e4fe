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

from rlscope_otel.integrations import areal_workers
from rlscope_otel.integrations.areal_workers import WORKERS
from rlscope_otel.integrations.host import recording_wanted
from rlscope_otel.integrations.loading import WatchedModules, once_loaded, watch_modules
from rlscope_otel.integrations.seams import Seams

_EXECUTOR = "areal.infra.workflow_executor"
_WATCHED: WatchedModules = {
    _EXECUTOR: {
        "WorkflowExecutor": areal_workers.EXECUTOR,
        "BatchTaskDispatcher": areal_workers.DISPATCHER,
        "": areal_workers.MODULE,
    },
    "areal.infra.remote_inf_engine": {"RemoteInfEngine": areal_workers.ENGINE},
    "areal.infra.controller.rollout_controller": {"RolloutController": areal_workers.CONTROLLER},
    "areal.infra.staleness_manager": {"StalenessManager": areal_workers.MANAGER},
}


def instrument(rollout_gpus: int = 0) -> None:
    """Watch AReaL's classes, whether loaded already or later. A no-op without a run folder, or if called again.

    `rollout_gpus`: GPUs of the inference servers that this process drives, for servers without a hook of their own.
    """
    if not recording_wanted():
        return
    WORKERS.rollout_gpus = rollout_gpus
    seams = areal_workers.EPISODES.seams = Seams(WORKERS.faults, areal_workers.now_ns)
    watch_modules(_WATCHED, seams)
    once_loaded("areal.utils.stats_tracker", areal_workers.watch_scopes, WORKERS.faults)
