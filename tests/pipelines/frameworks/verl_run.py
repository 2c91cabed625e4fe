"""A small run of verl's own rollouter, queue and trainer, each in its Ray actor, with stand-ins for what needs a GPU.

Real: FullyAsyncRollouter's loop, AgentLoopWorker's dispatch, FullyAsyncLLMServerClient with its resume after an abort,
the load balancer, MessageQueue, FullyAsyncTrainer's loop and its advantages. Stand-ins: the server, which makes one
token every few milliseconds and tags its replies as verl's servers do; the model's update; the transfer of its weights.

`python -m tests.pipelines.frameworks.verl_run RUN_DIR` leaves there what each of them counted.
"""

import asyncio
import json
import random
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import ray
import torch
from omegaconf import OmegaConf
from transformers import PreTrainedTokenizerFast
from verl import DataProto
from verl.experimental.agent_loop.agent_loop import AgentLoopMetrics, AgentLoopOutput, AgentLoopWorker
from verl.experimental.fully_async_policy.detach_utils import MetricsAggregator
from verl.experimental.fully_async_policy.fully_async_rollouter import FullyAsyncAgentLoopManager, FullyAsyncRollouter
from verl.experimental.fully_async_policy.fully_async_trainer import FullyAsyncTrainer
from verl.experimental.fully_async_policy.message_queue import MessageQueue, MessageQueueClient
from verl.workers.rollout.llm_server import FullyAsyncLLMServerClient
from verl.workers.rollout.replica import TokenOutput
from verl.workers.rollout.router import get_router_handle

from tests.pipelines.processes import COUNTED
from tests.ray_start import start_ray

PROMPTS, GROUP, PROMPTS_A_STEP, STEPS_A_VERSION = 36, 2, 2, 2
PROMPT_TOKENS, USUAL, LONGEST = 3, 60, 250
SECONDS_A_TOKEN, SECONDS_A_STEP = 0.004, 0.3
# Every token is the version that sampled it, so the trainer can count staleness without any tag; 0 is padding.
FIRST_TOKEN = 1
# Fewer than the rollouter counts on, so that the queue drops some.
QUEUE_CAPACITY = 2
CONFIG = OmegaConf.create(
    {
        "actor_rollout_ref": {
            "hybrid_engine": False,
            "actor": {
                "ppo_mini_batch_size": PROMPTS_A_STEP,
                "policy_loss": {},
                "loss_agg_mode": "token-mean",
                "loss_scale_factor": None,
            },
            "model": {},
            "rollout": {
                "name": "stand-in",
                "n": GROUP,
                "response_length": LONGEST,
                "prompt_length": PROMPT_TOKENS,
                "temperature": 1.0,
                "top_p": 1.0,
                "top_k": -1,
                "calculate_log_probs": True,
                "full_determinism": False,
                "agent": {"default_agent_loop": "stand_in"},
                "multi_turn": {"enable": True},
                "tensor_model_parallel_size": 1,
            },
        },
        "algorithm": {
            "use_kl_in_reward": False,
            "adv_estimator": "grpo",
            "gamma": 1.0,
            "lam": 1.0,
            "rollout_correction": {"bypass_mode": True},
        },
        "async_training": {
            "staleness_threshold": 0.5,
            "trigger_parameter_sync_step": STEPS_A_VERSION,
            "require_batches": 1,
            "partial_rollout": True,
            "use_trainer_do_validate": False,
        },
        "data": {},
        "global_profiler": {"steps": None},
        "rollout": {"nnodes": 1, "n_gpus_per_node": 2, "total_rollout_steps": None},
        "trainer": {
            "nnodes": 1,
            "n_gpus_per_node": 4,
            "balance_batch": False,
            "critic_warmup": 0,
            "test_freq": -1,
            "save_freq": -1,
            "total_epochs": 1,
            "esi_redundant_time": 0,
        },
    }
)


@ray.remote(num_cpus=0.1, max_concurrency=100)
class Server:
    """Makes tokens; an abort ends every request with what it has, and each reply tells the version it then has."""

    def __init__(self) -> None:
        self.global_steps = None
        self.aborting = asyncio.Event()
        self.open = asyncio.Event()
        self.replies: list[tuple[int | None, int]] = []

    async def generate(self, request_id, prompt_ids, sampling_params, **unused) -> TokenOutput:
        await self.open.wait()
        made = len(prompt_ids) - PROMPT_TOKENS
        wanted = min(sampling_params["max_tokens"], prompt_ids[0] - made)
        tokens: list[int] = []
        while len(tokens) < wanted and not self.aborting.is_set():
            await asyncio.sleep(SECONDS_A_TOKEN)
            tokens.append(FIRST_TOKEN + self.global_steps)
        self.replies.append((self.global_steps, len(tokens)))
        return TokenOutput(
            token_ids=tokens,
            log_probs=[0.0] * len(tokens),
            stop_reason="completed" if len(tokens) == wanted else "aborted",
            extra_fields={"global_steps": self.global_steps},
        )

    async def take_weights(self, global_steps: int) -> None:
        self.aborting.set()
        self.open.clear()
        await asyncio.sleep(0.02)
        self.global_steps = global_steps
        self.aborting.clear()
        self.open.set()

    async def counted(self) -> list[tuple[int | None, int]]:
        return self.replies


class StandInLoop:
    """One request a trajectory, of about the length that its prompt asks for; the reward is its length."""

    def __init__(self, server_manager, **unused) -> None:
        self.client = server_manager

    async def run(self, sampling_params, raw_prompt, **unused) -> AgentLoopOutput:
        prompt = [int(raw_prompt[0]) - random.randrange(5)] * PROMPT_TOKENS
        output = await self.client.generate("request", prompt_ids=prompt, sampling_params=sampling_params)
        return AgentLoopOutput(
            prompt_ids=prompt,
            response_ids=output.token_ids,
            response_mask=[1] * len(output.token_ids),
            response_logprobs=output.log_probs,
            reward_score=float(len(output.token_ids)),
            metrics=AgentLoopMetrics(),
            extra_fields=output.extra_fields,
        )


def tokenizer() -> PreTrainedTokenizerFast:
    from tokenizers import Tokenizer, models

    words = Tokenizer(models.WordLevel({"[PAD]": 0, "[UNK]": 1}, unk_token="[UNK]"))
    return PreTrainedTokenizerFast(tokenizer_object=words, pad_token="[PAD]")


class AgentWorker(AgentLoopWorker):
    """verl's, without a model to load."""

    def __init__(self, config, llm_client) -> None:
        # This class comes here by value: what it shares with verl in this process is imported in this process.
        from rlscope_otel.integrations import verl_actors
        from rlscope_otel.integrations.seams import Call
        from verl.experimental.agent_loop import agent_loop

        verl_actors.begin("controller", None, Call((self, config), {}, 0))
        self.config, self.llm_client = config, llm_client
        self.rollout_config = config.actor_rollout_ref.rollout
        self.tokenizer, self.processor, self.hf_model_type = tokenizer(), None, None
        self.dataset_cls, self.tools = None, []
        self.mm_processor_kwargs = {}
        self.reward_loop_worker_handles = None
        self.distillation_enabled = False
        agent_loop._agent_loop_registry["stand_in"] = {"_target_": "tests.pipelines.frameworks.verl_run.StandInLoop"}


class Rollouter(FullyAsyncRollouter.__ray_metadata__.modified_class):
    """verl's, with prompts of its own and one agent worker; its constructor would load data sets and engines."""

    def __init__(self, config, client) -> None:
        from rlscope_otel.integrations import verl_actors
        from rlscope_otel.integrations.seams import Call

        verl_actors.ROLLOUTER["__init__"].before(Call((self, config), {}, 0))
        self.config = config
        random.seed(1)
        # Every sixth takes longer than the steps between two versions, and so is interrupted.
        lengths = [random.randint(5, USUAL) if number % 6 else LONGEST for number in range(PROMPTS)]
        # The first token of a prompt says how many to answer with.
        self.train_dataloader = [
            {
                "raw_prompt": np.array([[length] * PROMPT_TOKENS], dtype=object),
                "agent_name": np.array(["stand_in"], dtype=object),
                "dummy": torch.zeros(1, 1),
            }
            for length in lengths
        ]
        self.total_rollout_steps = PROMPTS
        self.staleness_threshold = config.async_training.staleness_threshold
        self.required_samples = PROMPTS_A_STEP
        self.concurrent_samples_per_replica = 16
        self.total_generated_samples = self.staleness_samples = self.dropped_stale_samples = 0
        self.processed_sample_count = self._step_generated_samples = 0
        self._STEP_HISTORY_SIZE, self._completed_steps, self.global_steps = 10, 1, 1
        self._step_samples_history: list[object] = []
        self.idle_start_time = self.step_start_time = time.time()
        self.paused, self.running = False, True
        self.pending_queue: asyncio.Queue = asyncio.Queue(maxsize=128)
        self.active_tasks: set = set()
        self._active_count_history = [(time.time(), 0, 0)]
        self._init_async_objects()
        self.async_rollout_manager = object.__new__(FullyAsyncAgentLoopManager)
        self.async_rollout_manager.agent_loop_workers = [ray.remote(num_cpus=0.1)(AgentWorker).remote(config, client)]
        self.llm_server_manager = SimpleNamespace(get_active_server_count=lambda: 1)


class Transfer:
    """Stands in for verl's checkpoint engine."""

    def __init__(self, server) -> None:
        self.server = server
        self.published: list[int] = []

    async def update_weights(self, global_steps: int) -> None:
        self.published.append(global_steps)
        await self.server.take_weights.remote(global_steps)


class Trainer(FullyAsyncTrainer.__ray_metadata__.modified_class):
    """verl's, without the ranks that it would start."""

    def __init__(self, config, server) -> None:
        from rlscope_otel.integrations import verl_actors
        from rlscope_otel.integrations.seams import Call

        verl_actors.TRAINER["__init__"].before(Call((self, config), {}, 0))
        self.config, self.tokenizer = config, None
        self.global_steps = self.epoch = self.max_steps_duration = 0
        self.current_param_version, self.local_trigger_step, self.last_ckpt_version = 0, 1, 0
        self.trigger_parameter_sync_step = STEPS_A_VERSION
        self.processed_samples = self.stale_trajectory_processed = 0
        self.required_samples = PROMPTS_A_STEP
        self.metrics, self.timing_raw = {}, {}
        self.use_rm = self.use_critic = self.use_reference_policy = False
        self.only_hybrid = self.dynamic_schedule_enabled = False
        self.dynamic_resource_controller, self.hybrid_checkpoint_manager = None, None
        self.dynamic_schedule_ctx = SimpleNamespace(step_required_samples=0)
        self.staleness_threshold = config.async_training.staleness_threshold
        self._step_wait_times, self._step_wait_samples = [], []
        self.metrics_aggregator = MetricsAggregator(total_gpus=6)
        self.logger = SimpleNamespace(log=lambda data, step: None)
        self.progress_bar = SimpleNamespace(update=lambda count: None, close=lambda: None)
        self.resource_pool_manager = SimpleNamespace(get_n_gpus=lambda: 4)
        self.checkpoint_manager = Transfer(server)
        self.steps: list[dict[str, object]] = []

    def set_rollouter(self, rollouter) -> None:
        self.rollouter = rollouter

    def _update_actor(self, batch) -> DataProto:
        time.sleep(SECONDS_A_STEP)
        mask = batch.batch["response_mask"].bool()
        staleness = self.current_param_version - (batch.batch["responses"] - FIRST_TOKEN)
        self.steps.append(
            {
                "step": self.global_steps,
                "version": self.current_param_version,
                "uids": batch.non_tensor_batch["uid"].tolist(),
                "tokens": mask.sum(-1).tolist(),
                "token_staleness": staleness[mask].tolist(),
            }
        )
        return DataProto(meta_info={"metrics": {"actor/pg_loss": [0.5], "actor/grad_norm": [2.0]}})

    async def counted(self) -> dict[str, object]:
        return {"steps": self.steps, "published": self.checkpoint_manager.published}


def main() -> dict[str, object]:
    """Do what verl's task runner does: start each part, connect them, run both loops to their end."""
    start_ray(log_to_driver=False)
    server = Server.remote()
    balancer = get_router_handle(servers={"server-0": server})
    client = FullyAsyncLLMServerClient(CONFIG, balancer)
    rollouter = ray.remote(num_cpus=0.1, max_concurrency=100)(Rollouter).remote(CONFIG, client)
    trainer = ray.remote(num_cpus=0.1)(Trainer).remote(CONFIG, server)
    ray.get(rollouter.set_max_required_samples.remote())
    queue = MessageQueue.options(num_cpus=0.1).remote(CONFIG, QUEUE_CAPACITY)
    for part in (rollouter, trainer):
        ray.get(part.set_message_queue_client.remote(MessageQueueClient(queue)))
    ray.get(trainer.set_rollouter.remote(rollouter))
    ray.get(trainer._fit_update_weights.remote())
    ray.get([rollouter.fit.remote(), trainer.fit.remote()])
    counted = {name: ray.get(part.counted.remote()) for name, part in (("server", server), ("trainer", trainer))}
    counted["queue"] = ray.get(queue.get_statistics.remote())
    # A killed actor loses its last interval: these are given the time to write it, as verl's own end does not.
    time.sleep(3)
    ray.shutdown()
    return counted


if __name__ == "__main__":
    Path(sys.argv[1], COUNTED).write_text(json.dumps(main()))
