"""verl's fully asynchronous trainer: `VERL_USE_EXTERNAL_MODULES=rlscope_otel.integrations.verl RLSCOPE_RUN_DIR=...`.

verl imports the module named there in every process that imports verl; on a cluster whose nodes are already running,
set both variables in `ray_kwargs.ray_init.runtime_env.env_vars` too. Recorded, by process:

| process | is recorded as | with |
|---|---|---|
| FullyAsyncTrainer | trainer with all trainer GPUs | start-up, waits, steps, passes, publications, deliveries |
| FullyAsyncRollouter | sampler with all rollout GPUs, or controller | generating, waits at the cap, evaluations |
| each AgentLoopWorker | controller | samples: each request to a server is a segment |
| MessageQueue | controller | the queue's depth, dropped samples |

Samples are named `<uid>/<row>`, in the group `<uid>`; a row is a trajectory of the prompt. Their versions
(`version_source` segment) are exact for verl's weight updates, which abort every request: the server tags each part
with its version at that time. verl itself keeps only the first and the last version of a trajectory. The version is
verl's `param_version`, one for each weight update; there may be several optimizer steps between two updates.

If our plug-in for the engine (vLLM, SGLang) is installed, the servers' own workers own the rollout GPUs and record
forward passes; the rollouter is then a controller. Otherwise the rollouter represents the GPUs, with coarse states.
Either way this module records the samples, not the plug-in. Set RLSCOPE_VERL_ENGINES=unrecorded if the plug-in is
installed but does not run.

Not recorded: when an engine applies weights, unless the plug-in does; when a sample entered the queue; tokens of
validations, and teachers' requests. verl's cap (`staleness_threshold`) bounds samples, not versions, so run.json gets
no `max_staleness`. The trainer's ranks are recorded as one worker. At the end verl lets Ray kill the queue and the
agent loops: the report lists them as workers that did not stop, and at most one flush interval is lost.

Run with verl 0.9.1 and ray 2.60.0 on CPUs: MessageQueue and its client, `LLMServerClient.generate` and its fully
asynchronous subclass, the agent loop worker's dispatch, FullyAsyncRollouter's and FullyAsyncTrainer's own loops, all
real; the servers, the model workers and the weight transfer were simulated. Not run: a real engine, trainer ranks,
validation, checkpoints, hybrid replicas and dynamic scheduling, v1 trainers, one_step_off.
"""

from rlscope_otel.faults import Faults
from rlscope_otel.integrations import verl_actors
from rlscope_otel.integrations.host import leave_samples_to_framework, now_ns, recording_wanted
from rlscope_otel.integrations.loading import WatchedModules, watch_modules
from rlscope_otel.integrations.seams import Seams

_ASYNC = "verl.experimental.fully_async_policy"
_WATCHED: WatchedModules = {
    "verl.workers.rollout.llm_server": {"LLMServerClient": verl_actors.SERVER_CLIENT},
    "verl.experimental.agent_loop.agent_loop": {"AgentLoopWorker": verl_actors.AGENT_LOOP_WORKER},
    f"{_ASYNC}.message_queue": {"MessageQueue": verl_actors.QUEUE, "MessageQueueClient": verl_actors.QUEUE_CLIENT},
    f"{_ASYNC}.fully_async_rollouter": {"FullyAsyncRollouter": verl_actors.ROLLOUTER},
    f"{_ASYNC}.fully_async_trainer": {"FullyAsyncTrainer": verl_actors.TRAINER},
    f"{_ASYNC}.detach_utils": {"": verl_actors.ASSEMBLY},
}


def activate() -> None:
    """Watch verl's classes, whether loaded already or later. A no-op without a run folder, or if called again.

    Ray sends the classes of actors to their processes by value, watchers included: what watches them holds nothing of
    this process.
    """
    if not recording_wanted():
        return
    leave_samples_to_framework()
    watch_modules(_WATCHED, Seams(Faults(), now_ns))


activate()
