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

from types import ModuleType
from typing import Any

from rlscope_otel.faults import Faults
from rlscope_otel.integrations import verl_queue, verl_rollouter, verl_samples, verl_trainer
from rlscope_otel.integrations.host import leave_samples_to_framework, recording_wanted
from rlscope_otel.integrations.loading import when_loaded
from rlscope_otel.integrations.seams import Seams, Watch
from rlscope_otel.integrations.verl_processes import actor_class, now_ns

_ASYNC = "verl.experimental.fully_async_policy"
_WATCHED: dict[str, dict[str, dict[str, Watch]]] = {
    "verl.workers.rollout.llm_server": {"LLMServerClient": verl_samples.CLIENT},
    "verl.experimental.agent_loop.agent_loop": {"AgentLoopWorker": verl_samples.WORKER},
    f"{_ASYNC}.message_queue": {"MessageQueue": verl_queue.QUEUE, "MessageQueueClient": verl_trainer.CLIENT},
    f"{_ASYNC}.fully_async_rollouter": {"FullyAsyncRollouter": verl_rollouter.ROLLOUTER},
    f"{_ASYNC}.fully_async_trainer": {"FullyAsyncTrainer": verl_trainer.TRAINER},
    f"{_ASYNC}.detach_utils": {"": verl_trainer.ASSEMBLY},
}
"""By module and class (none: the module itself) the functions to watch."""

_watched_modules: set[str] = set()


def activate() -> None:
    """Watch verl's classes, whether loaded already or later. A no-op without a run folder, or if called again.

    Ray sends the classes of actors to their processes by value, watchers included: what watches them holds nothing of
    this process.
    """
    if not recording_wanted():
        return
    leave_samples_to_framework()
    faults = Faults()
    for name in _WATCHED.keys() - _watched_modules:
        _watched_modules.add(name)
        when_loaded(name, lambda module: _watch(module, Seams(Faults(), now_ns)), faults)


def _watch(module: ModuleType, seams: Seams) -> None:
    for class_name, functions in _WATCHED[module.__name__].items():
        owner: Any = actor_class(getattr(module, class_name)) if class_name else module
        for function, watch in functions.items():
            seams.watch(owner, function, watch)


activate()
