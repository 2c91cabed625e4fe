"""Every knob of the pipeline as one frozen dataclass, the command line made from it, and what the trace is told."""

import argparse
from collections.abc import Sequence
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, get_args

from examples.pipeline_rl.shape import ModelShape

StalenessPolicy = Literal["publication_waits", "drop", "admission", "none"]
POLICIES = get_args(StalenessPolicy)


def _flag(default: object, text: str, kind: type = int, choices: tuple[str, ...] | None = None) -> Any:  # noqa: ANN401
    """A dataclass field that is also a command line flag."""
    return field(default=default, metadata={"help": text, "kind": kind, "choices": choices})


@dataclass(frozen=True, slots=True)
class Options:
    """What one run does. Samples are counted in samples, lengths in tokens."""

    run_dir: Path
    steps: int = _flag(150, "optimizer steps")
    samplers: int = _flag(1, "sampler processes")
    trainers: int = _flag(1, "data-parallel trainer processes, which add up their gradients by gloo")
    slots: int = _flag(32, "requests that one sampler runs at once")
    batch: int = _flag(64, "samples per training step")
    group: int = _flag(8, "samples per prompt")
    queue_capacity_samples: int = _flag(128, "samples that the queue holds; when full, samplers hold back")
    max_staleness: int = _flag(4, "oldest token that may be trained on, in publications")
    staleness_policy: StalenessPolicy = _flag("drop", "how the cap is kept", str, POLICIES)  # noqa: RUF009
    max_in_flight_samples: int | None = _flag(None, "most samples running or queued, over all samplers")
    response_cap: int = _flag(96, "longest response, in tokens")
    publish_every: int = _flag(1, "optimizer steps per publication of weights")
    synchronous: bool = _flag(False, "generate one batch, train on it, publish, repeat", bool)
    slow: float = _flag(1.0, "how many times slower than a core every worker computes: more workers than cores", float)
    slow_trainer: float = _flag(1.0, "how many times slower the trainers compute", float)
    slow_sampler: float = _flag(1.0, "how many times slower a sampler's forward passes are", float)
    slow_sampler_id: str | None = _flag(None, "the only sampler that --slow-sampler slows, e.g. sampler-1", str)
    logprobs_pass: bool = _flag(False, "recompute log-probabilities before each step (decoupled objective)", bool)
    filter_flat_groups: bool = _flag(False, "throw away groups whose samples all have one reward", bool)
    eval_every: int = _flag(0, "optimizer steps between evaluations; 0: never")
    checkpoint_every: int = _flag(0, "optimizer steps between checkpoints; 0: never")
    checkpoint_dir: Path | None = _flag(None, "where checkpoints go; RUN_DIR/checkpoints when not given", Path)  # noqa: RUF009
    stale_head: bool = _flag(False, "a fault: samplers never take over the output head of new weights", bool)
    learning_rate: float = _flag(5e-4, "AdamW's learning rate", float)
    width: int = _flag(128, "width of the model")
    layers: int = _flag(2, "layers of the model")
    heads: int = _flag(4, "attention heads")
    seed: int = _flag(0, "seed of the prompts, the sampling and the weights")
    log_every: int = _flag(10, "optimizer steps between progress lines")
    flush_interval_s: float = _flag(2.0, "seconds between flushes of the trace", float)
    pin: bool = _flag(True, "give the trainers the last core and the samplers the others", bool)
    hooks: bool = _flag(True, "record a trace", bool)
    verl_metrics: str | None = _flag(
        None, "also log each step as verl does, to these backends of its Tracking: console,file", str
    )
    slime_log: bool = _flag(False, "also print the console lines of slime's trainer", bool)

    def __post_init__(self) -> None:
        problem = _problem(self)
        if problem is not None:
            raise ValueError(problem)

    @property
    def groups_per_step(self) -> int:
        """Prompts per training step."""
        return self.batch // self.group

    @property
    def shape(self) -> ModelShape:
        """The model's sizes."""
        return ModelShape(self.width, self.layers, self.heads, self.response_cap)

    @property
    def trainer_ids(self) -> tuple[str, ...]:
        """The lead first."""
        return ("trainer",) if self.trainers == 1 else tuple(f"trainer-{rank}" for rank in range(self.trainers))

    @property
    def sampler_ids(self) -> tuple[str, ...]:
        """All samplers."""
        return tuple(f"sampler-{index}" for index in range(self.samplers))

    def slowdown_of(self, worker_id: str) -> float:
        """How many times slower the worker computes than a core could."""
        if worker_id in self.trainer_ids:
            return self.slow * self.slow_trainer
        return self.slow * (self.slow_sampler if self.slow_sampler_id in (None, worker_id) else 1.0)


def _problem(options: Options) -> str | None:
    """Why these options cannot run, if they cannot."""
    limits = {
        "--queue-capacity-samples": options.queue_capacity_samples,
        "--max-in-flight-samples": options.max_in_flight_samples or options.batch,
    }
    if options.batch % options.group:
        return f"--batch {options.batch} is not a multiple of --group {options.group}"
    for name, limit in limits.items():
        if limit < options.batch:
            return f"{name} {limit} is below --batch {options.batch}: no step could ever start"
    if options.staleness_policy == "publication_waits" and options.max_staleness < 1:
        return "--staleness-policy publication_waits needs --max-staleness 1 or more (for 0, use --synchronous)"
    if min(options.slow, options.slow_trainer, options.slow_sampler) < 1:
        return "--slow, --slow-trainer and --slow-sampler are factors of 1 or more"
    if min(options.trainers, options.samplers) < 1:
        return "--trainers and --samplers are 1 or more"
    if options.trainers > options.groups_per_step:
        return f"--trainers {options.trainers} cannot share the {options.groups_per_step} groups of a batch"
    return None


def trace_config(options: Options) -> dict[str, object]:
    """What run.json says about the run."""
    capped = options.staleness_policy != "none" and not options.synchronous
    return {
        "total_gpus": options.trainers + options.samplers,
        "gpus_per_engine": 1,
        "gpus_per_trainer_replica": 1,
        "samples_per_step": options.batch,
        "group_size": options.group,
        "max_staleness": options.max_staleness if capped else None,
        "staleness_policy": options.staleness_policy if capped else "none",
        "max_in_flight_samples": options.max_in_flight_samples,
        "queue_capacity_samples": options.queue_capacity_samples,
        "queue_policy": "wait",
        "queue_order": "oldest_first",
        "dispatch": "pulled",
        "batches_ahead": 0,
        "max_output_tokens": options.response_cap,
        "max_running": options.slots,
        "model": options.shape.trace_config(),
        "framework": "torch",
        "total_steps": options.steps,
        "synchronous": options.synchronous,
    }


def verl_config(options: Options) -> dict[str, object]:
    """The same in the words of verl's config."""
    rollout = {"n": options.group, "n_gpus_per_node": 1, "nnodes": options.samplers, "max_num_seqs": options.slots}
    return {
        "trainer": {"n_gpus_per_node": 1, "nnodes": options.trainers, "total_training_steps": options.steps},
        "actor_rollout_ref": {"rollout": {**rollout, "tensor_model_parallel_size": 1}},
        "data": {"train_batch_size": options.groups_per_step, "max_response_length": options.response_cap},
    }


def slime_config(options: Options) -> dict[str, object]:
    """The same in the words of slime's arguments."""
    return {
        "actor_num_nodes": 1,
        "actor_num_gpus_per_node": options.trainers,
        "rollout_num_gpus": options.samplers,
        "rollout_num_gpus_per_engine": 1,
        "colocate": False,
        "rollout_batch_size": options.groups_per_step,
        "n_samples_per_prompt": options.group,
        "num_rollout": options.steps,
    }


def parse_options(arguments: Sequence[str]) -> Options:
    """Options from the command line; a contradiction is a usage error."""
    parser = argparse.ArgumentParser(prog="python -m examples.pipeline_rl", description=__doc__)
    parser.add_argument("run_dir", type=Path, help="where the trace and pipeline_summary.json go")
    for knob in fields(Options):
        if knob.default is not MISSING:
            _add_flag(parser, knob.name, knob.default, dict(knob.metadata))
    values = vars(parser.parse_args(arguments))
    try:
        return Options(**values)
    except ValueError as problem:
        parser.error(str(problem))


def _add_flag(parser: argparse.ArgumentParser, name: str, default: object, metadata: dict[str, Any]) -> None:
    flag, text = "--" + name.replace("_", "-"), f"{metadata['help']} (default: {default})"
    if metadata["kind"] is bool:
        parser.add_argument(flag, action=argparse.BooleanOptionalAction, default=default, help=text)
    else:
        parser.add_argument(flag, type=metadata["kind"], choices=metadata["choices"], default=default, help=text)
