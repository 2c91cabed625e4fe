"""A small run of AReaL's own executor, staleness manager, groups and client, with a stand-in for the servers.

Real: WorkflowExecutor and its threads, StalenessManager, GroupedRolloutWorkflow, RemoteInfEngine with its resume after
an abort, `stats_tracker`. Stand-ins: the HTTP servers, which make one token every few milliseconds and stop at an
abort; the backend that words requests for them; the trainer's loop, which has the scopes of AReaL's.

`python -m tests.pipelines.frameworks.areal_run RUN_DIR` leaves there what each of them counted.
"""

import asyncio
import json
import random
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import torch
from areal.api import RolloutWorkflow
from areal.api.cli_args import GenerationHyperparameters, InferenceEngineConfig
from areal.api.io_struct import ModelRequest
from areal.infra import remote_inf_engine
from areal.utils import stats_tracker
from rlscope_otel.integrations import areal as rlscope_areal

from tests.pipelines.processes import COUNTED

GROUP, GROUPS_A_STEP, STEPS, CAP = 2, 3, 6, 2
SECONDS_A_TOKEN, SECONDS_A_STEP = 0.003, 0.15
PROMPT_TOKENS = 4


class Servers:
    """All servers as one: every token is the version that sampled it, so staleness can be counted without any tag."""

    def __init__(self) -> None:
        self.version = 0
        self.aborting = asyncio.Event()
        self.tokens_by_version: dict[int, int] = {}

    async def answer(self, *, endpoint: str, payload: dict[str, int], **unused: object) -> dict[str, object]:
        if endpoint == "/pause":
            self.aborting.set()
        elif endpoint == "/continue":
            self.aborting.clear()
        return await self.generate(payload["tokens"]) if endpoint == "/generate" else {}

    async def generate(self, wanted: int) -> dict[str, object]:
        tokens: list[int] = []
        while len(tokens) < wanted and not self.aborting.is_set():
            await asyncio.sleep(SECONDS_A_TOKEN)
            tokens.append(self.version)
        for version in tokens:
            self.tokens_by_version[version] = self.tokens_by_version.get(version, 0) + 1
        return {"tokens": tokens, "reason": "length" if len(tokens) == wanted else "abort"}


class Backend:
    """Words requests for the servers."""

    def build_generation_request(self, req: ModelRequest, with_lora: bool, version: int) -> SimpleNamespace:
        return SimpleNamespace(endpoint="/generate", payload={"tokens": req.gconfig.max_new_tokens}, method="POST")

    def parse_generation_response(self, result: dict[str, object]) -> SimpleNamespace:
        tokens = result["tokens"]
        return SimpleNamespace(
            stop_reason=result["reason"], output_tokens=tokens, output_logprobs=[0.0] * len(tokens), routed_experts=None
        )

    def get_pause_request(self) -> SimpleNamespace:
        return SimpleNamespace(endpoint="/pause", payload={}, method="POST")

    def get_resume_request(self) -> SimpleNamespace:
        return SimpleNamespace(endpoint="/continue", payload={}, method="POST")


class Workflow(RolloutWorkflow):
    """One request an episode, two in every other; some episodes return nothing, and some fail."""

    def __init__(self) -> None:
        self.running = 0
        self.ended = {"kept": 0, "empty": 0, "failed": 0, "cancelled": 0}

    async def arun_episode(self, engine, data):
        self.running += 1
        try:
            return await self.generate(engine, data)
        except asyncio.CancelledError:
            self.ended["cancelled"] += 1
            raise
        finally:
            self.running -= 1

    async def generate(self, engine, data):
        tokens: list[int] = []
        versions: list[int] = []
        for _ in range(1 + data["number"] % 2):
            wanted = random.randint(5, 80)
            request = ModelRequest(
                input_ids=[0] * (PROMPT_TOKENS + len(tokens)), gconfig=GenerationHyperparameters(max_new_tokens=wanted)
            )
            response = await engine.agenerate(request)
            tokens += response.output_tokens
            versions += response.output_versions
        if data["number"] % 7 == 3:
            self.ended["failed"] += 1
            raise ValueError("this episode fails, as it should")
        if data["number"] % 7 == 5:
            self.ended["empty"] += 1
            return None
        self.ended["kept"] += 1
        return trajectory(tokens, versions, reward=float(len(tokens)))


def trajectory(tokens: list[int], versions: list[int], reward: float) -> dict[str, torch.Tensor]:
    whole = len(tokens) + PROMPT_TOKENS
    prompt = [-1] * PROMPT_TOKENS
    return {
        "input_ids": torch.tensor([prompt + tokens]),
        "versions": torch.tensor([prompt + versions]),
        "attention_mask": torch.ones(1, whole, dtype=torch.bool),
        "loss_mask": torch.tensor([[0] * PROMPT_TOKENS + [1] * len(tokens)]),
        "rewards": torch.tensor([reward]),
    }


def accepts(group: dict[str, torch.Tensor]) -> bool:
    """A filter as of flat groups."""
    return int(group["rewards"][0]) % 5 != 0


class Prompts:
    """An endless loader, as AReaL cycles any."""

    batch_size = GROUPS_A_STEP

    def __init__(self) -> None:
        self.number = 0

    def __iter__(self):
        for _ in range(100):
            yield [self.next() for _ in range(GROUPS_A_STEP)]

    def next(self) -> dict[str, int]:
        self.number += 1
        return {"number": self.number}


def train_on(batch: list[dict[str, torch.Tensor]], version: int) -> dict[str, object]:
    """What a step would train on, counted from the tokens themselves."""
    masks = [group["loss_mask"].bool() for group in batch]
    ages = [version - group["input_ids"][mask] for group, mask in zip(batch, masks, strict=True)]
    time.sleep(SECONDS_A_STEP)
    return {
        "version": version,
        "samples": sum(len(mask) for mask in masks),
        "tokens_by_sample": [int(count) for mask in masks for count in mask.sum(-1)],
        "token_staleness": torch.cat(ages).tolist(),
    }


def main() -> dict[str, object]:
    rlscope_areal.instrument(rollout_gpus=2)
    random.seed(1)
    config = InferenceEngineConfig(
        experiment_name="test",
        trial_name="test",
        max_concurrent_rollouts=4,
        consumer_batch_size=GROUPS_A_STEP,
        max_head_offpolicyness=CAP,
        pause_grace_period=0.05,
    )
    servers, workflow, prompts = Servers(), Workflow(), Prompts()
    remote_inf_engine.arequest_with_retry = servers.answer
    engine = remote_inf_engine.RemoteInfEngine(config, Backend())
    engine._wait_for_server = lambda address: None
    engine.initialize(engine_id="0", addr="stand-in:0", train_data_parallel_size=1)
    steps: list[dict[str, object]] = []
    for step in range(STEPS):
        with stats_tracker.record_timing("rollout"):
            batch = engine.prepare_batch(prompts, workflow, should_accept_fn=accepts, group_size=GROUP)
        with stats_tracker.record_timing("recompute_logp"):
            time.sleep(0.01)
        with stats_tracker.record_timing("train_step"):
            steps.append(train_on(batch, engine.get_version()))
        engine.pause()
        with stats_tracker.record_timing("update_weights"):
            engine.pause_generation()
            servers.version = step + 1
            engine.continue_generation()
            engine.set_version(step + 1)
        with stats_tracker.record_timing("save"):
            time.sleep(0.01)
        engine.resume()
    # The rest ends by itself, so that every count is final: nothing may be submitted any more.
    manager = engine.workflow_executor.staleness_manager
    engine.workflow_executor.dispatcher._pending_inputs.clear()
    # A group has failed with its first episode; the others of it run on.
    while manager.get_stats().running or workflow.running:
        time.sleep(0.05)
    timings, stats = stats_tracker.export_all(), manager.get_stats()
    engine.workflow_executor.destroy()
    return {
        "steps": steps,
        "tokens_by_version": servers.tokens_by_version,
        "accepted_tasks": stats.accepted,
        "rejected_tasks": stats.rejected,
        "episodes": workflow.ended,
        "timings": {name: value for name, value in timings.items() if name.startswith("timeperf/")},
    }


if __name__ == "__main__":
    Path(sys.argv[1], COUNTED).write_text(json.dumps(main()))
