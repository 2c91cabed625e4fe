"""One training: the tiny model, TRL's trainer around one of the two engines, and the hooks, which are one line."""

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import rlscope_otel
import torch
from datasets import Dataset
from rlscope_otel.integrations import trl_async
from transformers import AutoTokenizer, PrinterCallback, TrainerCallback
from trl.experimental.async_grpo import AsyncGRPOConfig, AsyncGRPOTrainer

from examples.trl_async.counts import Counts
from examples.trl_async.cpu import prepare_trl
from examples.trl_async.options import Options
from examples.trl_async.tiny_model import RESPONSE_TEMPLATE, save_tiny

PROMPTS = 64
LOGS = "trl_logs"
"""Folder of what TRL logs itself, in the run's folder."""


class Logbook(TrainerCallback):
    """Gives TRL's own numbers to the counts."""

    def __init__(self, counts: Counts) -> None:
        self._counts = counts

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: object) -> None:  # noqa: ANN401
        if "loss" in logs:
            self._counts.log(logs)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: object) -> None:  # noqa: ANN401
        self._counts.steps = state.global_step


def train(options: Options) -> Counts:
    """Train to the last step and write the counts."""
    torch.set_num_threads(1)
    prepare_trl()
    options.run_dir.mkdir(parents=True, exist_ok=True)
    if options.report_to:
        (options.run_dir / LOGS).mkdir(exist_ok=True)
        os.environ["TENSORBOARD_LOGGING_DIR"] = os.environ["WANDB_DIR"] = str(options.run_dir / LOGS)
    counts = Counts()
    with tempfile.TemporaryDirectory() as scratch, recording(options, "trainer") as run:
        with run.activity("startup"):
            model_dir = save_tiny(Path(scratch) / "model", options.seed, options.tied)
            prompts = [{"prompt": [{"role": "user", "content": f"say {number}"}]} for number in range(PROMPTS)]
        with _engine_for(options, model_dir, prompts, counts) as engine:
            with run.activity("startup"):
                trainer = _make_trainer(options, model_dir, Path(scratch), prompts, counts, engine)
            trl_async.instrument(trainer, run)
            begin_s = time.perf_counter()
            trainer.train()
            counts.train_s = time.perf_counter() - begin_s
            if options.report_to:
                trainer.state.save_to_json(str(options.run_dir / LOGS / "trainer_state.json"))
    counts.write(options.run_dir)
    return counts


@contextmanager
def recording(options: Options, role: str) -> Iterator[rlscope_otel.Run]:
    """A worker of the run; inert without hooks."""
    run_dir = options.run_dir if options.hooks else ""
    with rlscope_otel.start_run(run_dir, role, role, gpu_count=1, flush_interval_s=options.flush_interval_s) as run:
        yield run


@contextmanager
def _engine_for(options: Options, model_dir: Path, prompts: list[Any], counts: Counts) -> Iterator[dict[str, Any]]:
    """What TRL's trainer is to be given in place of its own rollout worker and weight transfer, as arguments."""
    cores = sorted(os.sched_getaffinity(0))
    if options.engine == "vllm":
        from examples.trl_async.vllm_engine import serving

        with serving(options, model_dir, counts, cores[0]) as arguments:
            _pin(options, cores[-1])
            yield arguments
        return
    from examples.trl_async.transformers_engine import TransformersEngine

    _pin(options, cores[0])  # Threads inherit it: the engine's generation loop keeps this core.
    with recording(options, "sampler") as run:
        engine = TransformersEngine(options, model_dir, prompts, counts, run)
        _pin(options, cores[-1])
        try:
            yield {"rollout_worker": engine, "weight_transfer": engine}
        finally:
            engine.stop()


def _pin(options: Options, core: int) -> None:
    if options.pin:
        os.sched_setaffinity(0, {core})


def _make_trainer(
    options: Options, model_dir: Path, scratch: Path, prompts: list[Any], counts: Counts, engine: dict[str, Any]
) -> AsyncGRPOTrainer:
    tokenizer = AutoTokenizer.from_pretrained(model_dir)
    tokenizer.response_template = RESPONSE_TEMPLATE
    callbacks = engine.pop("callbacks", [])
    trainer = AsyncGRPOTrainer(
        model=str(model_dir),
        args=_config(options, scratch, engine.pop("server_url", None)),
        train_dataset=Dataset.from_list(prompts),
        processing_class=tokenizer,
        callbacks=[Logbook(counts), *callbacks],
        **engine,
    )
    trainer.remove_callback(PrinterCallback)
    for callback in callbacks:
        callback.trainer = trainer
    return trainer


def _config(options: Options, scratch: Path, server_url: str | None) -> AsyncGRPOConfig:
    return AsyncGRPOConfig(
        output_dir=str(scratch / "out"),
        max_steps=options.steps,
        per_device_train_batch_size=options.batch,
        num_generations=options.group,
        max_completion_length=options.response_cap,
        max_inflight_tasks=options.in_flight,
        max_staleness=options.max_staleness,
        weight_sync_steps=options.sync_every,
        queue_maxsize=options.queue_capacity_samples,
        learning_rate=options.learning_rate,
        seed=options.seed,
        token_budget=0,  # Fixed batches; otherwise TRL asks the server how long a row may be.
        logging_steps=1,
        save_strategy="no",
        report_to=[options.report_to] if options.report_to else [],
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        disable_tqdm=True,
        log_level="error",
        **({"vllm_server_base_url": server_url} if server_url else {}),
    )
