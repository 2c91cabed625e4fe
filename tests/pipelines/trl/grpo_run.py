"""Runs TRL's synchronous GRPOTrainer under its hook and prints what was counted without it, as JSON."""

import json
import os
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import rlscope_otel
import torch
from datasets import Dataset
from rlscope_otel.integrations import trl_grpo
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from examples.trl_async.tiny_model import byte_share_ratio, save_tiny

STEPS, BATCH, GROUP, STEPS_PER_GENERATION, ITERATIONS = 9, 8, 4, 2, 2
scored_tokens: list[int] = []
logged: list[dict[str, float | None]] = []


def reward(completion_ids: list[list[int]], **_unused: object) -> list[float]:
    scored_tokens.extend(map(len, completion_ids))
    return [byte_share_ratio(tokens) for tokens in completion_ids]


class Logbook(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **_unused):
        if "loss" in logs:
            logged.append({name: logs.get(name) for name in ("loss", "grad_norm", "num_tokens")})


def train(run_dir: Path, scratch: Path) -> int:
    trainer = GRPOTrainer(
        model=str(save_tiny(scratch / "model")),
        reward_funcs=reward,
        args=GRPOConfig(
            output_dir=str(scratch / "out"),
            max_steps=STEPS,
            per_device_train_batch_size=BATCH,
            num_generations=GROUP,
            steps_per_generation=STEPS_PER_GENERATION,
            num_iterations=ITERATIONS,
            max_completion_length=16,
            learning_rate=1e-3,
            logging_steps=1,
            save_steps=5,
            report_to=[],
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            disable_tqdm=True,
        ),
        train_dataset=Dataset.from_list([{"prompt": f"say {number}"} for number in range(64)]),
        callbacks=[Logbook()],
    )
    with rlscope_otel.start_run(run_dir, "colocated", "colocated") as run:
        trl_grpo.instrument(trainer, run)
        trainer.train()
        assert run.faults.counts == {}
    return trainer.state.global_step


if __name__ == "__main__":
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch:
        steps = train(Path(sys.argv[1]), Path(scratch))
    counted = {"steps": steps, "batch": BATCH, "scored_tokens": scored_tokens, "logged": logged}
    Path(sys.argv[1], "counted.json").write_text(json.dumps(counted), encoding="utf-8")
