"""TRL with a vLLM server, where the reward or the transfer of weights never returns once a file says so.

`benchmarks/stalls.py` starts it with the flags of `examples.trl_async`, and later writes its fault into the file that
the variable STALL names.
"""

import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# Read when torch and TRL are imported.
os.environ.update({"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"})

import torch

from examples.trl_async import vllm_engine
from examples.trl_async.options import parse_options


def hang_if(fault: str) -> None:
    """Never return once the file holds this fault."""
    file = Path(os.environ["STALL"])
    if file.exists() and file.read_text() == fault:
        threading.Event().wait()


class Reward(vllm_engine.ByteShare):
    """The reward of the example, in TRL's child process."""

    def __call__(self, completion_ids: list[list[int]], **unused: Any) -> list[float]:  # noqa: ANN401
        hang_if("a reward that never returns")
        return super().__call__(completion_ids, **unused)


class Transfer(vllm_engine.FileTransfer):
    """The transfer of the example, in the trainer."""

    def send_weights(self, iterator: Iterator[tuple[str, torch.Tensor]]) -> None:
        hang_if("a transfer of weights that hangs")
        super().send_weights(iterator)


if __name__ == "__main__":
    from benchmarks import trl_stalls
    from examples.trl_async.train import train

    # TRL's child process imports the reward by its module's name, which is not __main__ there.
    vllm_engine.ByteShare, vllm_engine.FileTransfer = trl_stalls.Reward, trl_stalls.Transfer
    # Beside other runs, vLLM takes long to start.
    vllm_engine.READY_TIMEOUT_S = 900.0
    train(parse_options(sys.argv[1:]))
