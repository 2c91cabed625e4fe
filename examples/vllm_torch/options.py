"""The options of the pipeline, its command line, and the config that goes into the trace."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from examples.pipeline_rl.task import PROMPT_TOKENS


@dataclass(frozen=True, slots=True)
class Options:
    """What one run does. Samples are counted in samples, lengths in tokens."""

    run_dir: Path
    steps: int
    slots: int
    batch: int
    group: int
    queue_capacity_samples: int
    max_staleness: int
    response_cap: int
    width: int
    layers: int
    learning_rate: float
    seed: int
    synchronous: bool
    tied: bool
    pin: bool

    @property
    def groups_per_step(self) -> int:
        """Prompts per training step."""
        return self.batch // self.group

    @property
    def context_tokens(self) -> int:
        """Longest prompt and response together."""
        return PROMPT_TOKENS + self.response_cap

    def trace_config(self) -> dict[str, object]:
        """The run's settings as run.json describes them."""
        return {
            "total_gpus": 2,
            "samples_per_step": self.batch,
            "group_size": self.group,
            "max_staleness": self.max_staleness,
            "staleness_policy": "drop",
            "queue_capacity_samples": self.queue_capacity_samples,
            "queue_policy": "wait",
            "queue_order": "oldest_first",
            "dispatch": "pulled",
            "batches_ahead": 0,
            "max_output_tokens": self.response_cap,
            "max_running": self.slots,
            "gpus_per_engine": 1,
            "gpus_per_trainer_replica": 1,
            "total_steps": self.steps,
        }


def parse_options(arguments: Sequence[str]) -> Options:
    """The command line as options; exits with a message when it makes no sense."""
    parser = argparse.ArgumentParser(prog="python -m examples.vllm_torch", description=__doc__)
    parser.add_argument("run_dir", type=Path, help="folder of the trace")
    parser.add_argument("--steps", type=int, default=60, help="optimizer steps")
    parser.add_argument("--slots", type=int, default=32, help="requests that the engine runs at once")
    parser.add_argument("--batch", type=int, default=64, help="samples per training step")
    parser.add_argument("--group", type=int, default=8, help="samples per prompt")
    parser.add_argument("--queue-capacity-samples", type=int, default=64, help="samples that the queue holds")
    parser.add_argument("--max-staleness", type=int, default=4, help="oldest token that is trained on, in publications")
    parser.add_argument("--response-cap", type=int, default=64, help="longest response, in tokens")
    parser.add_argument("--width", type=int, default=128, help="width of the model")
    parser.add_argument("--layers", type=int, default=2, help="layers of the model")
    parser.add_argument("--learning-rate", type=float, default=1e-3, help="AdamW's learning rate")
    parser.add_argument("--seed", type=int, default=0, help="seed of the prompts, the sampling and the weights")
    parser.add_argument(
        "--synchronous", action="store_true", help="generate one batch, train on it, publish: all tokens are fresh"
    )
    parser.add_argument(
        "--tied",
        action="store_true",
        help="a bug: the head is tied to the embeddings and not sent separately, so vLLM's CPU build keeps its first",
    )
    parser.add_argument("--no-pin", dest="pin", action="store_false", help="let both processes use every core")
    options = Options(**vars(parser.parse_args(arguments)))
    if options.batch % options.group or options.queue_capacity_samples < options.batch:
        parser.error("--batch must be a multiple of --group, and --queue-capacity-samples at least --batch")
    return options
