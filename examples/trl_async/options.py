"""The options of the example, and its command line."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, get_args

Engine = Literal["transformers", "vllm"]


@dataclass(frozen=True, slots=True)
class Options:
    """What one run does. Samples are counted in samples, lengths in tokens."""

    run_dir: Path
    steps: int = 40
    engine: Engine = "transformers"
    batch: int = 16
    group: int = 8
    in_flight: int = 32
    queue_capacity_samples: int = 96
    max_staleness: int = 4
    sync_every: int = 1
    response_cap: int = 32
    learning_rate: float = 3e-3
    seed: int = 0
    tied: bool = False
    pin: bool = True
    hooks: bool = True
    report_to: str = ""
    port: int = 0
    flush_interval_s: float = 2.0


_HELP = {
    "steps": "optimizer steps",
    "engine": "what generates: transformers' continuous batching in this process, or a vLLM server",
    "batch": "samples per training step",
    "group": "samples per prompt",
    "in_flight": "requests that generate at once",
    "queue_capacity_samples": "samples that the queue holds",
    "max_staleness": "oldest sample that is trained on, by TRL's count",
    "sync_every": "optimizer steps per publication of weights",
    "response_cap": "longest response",
    "learning_rate": "AdamW's learning rate",
    "seed": "seed of the model",
    "tied": "tie the head to the embedding, which vLLM's CPU build then never gets: a silent fault to look at",
    "pin": "give the trainer the last core and the engine the first",
    "hooks": "record a trace",
    "report_to": "have TRL log as well, into RUN_DIR/trl_logs: none (trainer_state.json alone), tensorboard or wandb",
    "port": "port of the vLLM server; 0 for a free one",
    "flush_interval_s": "seconds between flushes of the trace",
}


def parse_options(arguments: Sequence[str]) -> Options:
    """Options from the command line."""
    parser = argparse.ArgumentParser(prog="python -m examples.trl_async", description=__doc__)
    parser.add_argument("run_dir", type=Path, help="where the trace and pipeline_summary.json go")
    for knob in fields(Options):
        if knob.name in _HELP:
            _add_flag(parser, knob.name, knob.default)
    options = Options(**vars(parser.parse_args(arguments)))
    if options.batch % options.group:
        parser.error(f"--batch {options.batch} is not a multiple of --group {options.group}")
    return options


def _add_flag(parser: argparse.ArgumentParser, name: str, default: Any) -> None:  # noqa: ANN401
    flag, text = "--" + name.replace("_", "-"), f"{_HELP[name]} (default: {default})"
    if isinstance(default, bool):
        parser.add_argument(flag, action=argparse.BooleanOptionalAction, default=default, help=text)
        return
    choices = get_args(Engine) if name == "engine" else None
    parser.add_argument(flag, type=type(default), choices=choices, default=default, help=text)
