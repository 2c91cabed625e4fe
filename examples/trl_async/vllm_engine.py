"""A vLLM server for TRL's own rollout worker: three processes of vLLM, and TRL's child process that asks them.

The weights go through a file in shared memory (`examples/vllm_cpu`); everything else is TRL's and vLLM's own. The
server records itself: it is started with the run folder in its environment, and vLLM loads the hook by its entry point.
"""

import json
import os
import queue
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import requests
import torch
from safetensors.torch import save_file
from transformers import TrainerCallback
from trl.experimental.async_grpo.vllm_client import VLLMClient

from examples.trl_async.counts import Counts
from examples.trl_async.options import Options
from examples.trl_async.tiny_model import byte_share_ratio

READY_TIMEOUT_S = 180.0
STOP_TIMEOUT_S = 60.0
DRAIN_S = 10.0
LONGEST_TOKENS = 256
SHARED_MEMORY = Path("/dev/shm")


@dataclass(frozen=True, slots=True)
class ByteShare:
    """The reward, in TRL's child process; it writes down how many tokens it was given."""

    __name__ = "byte_share"
    notes: Path

    def __call__(self, completion_ids: list[list[int]], **_unused: object) -> list[float]:
        with self.notes.open("a", encoding="utf-8") as notes:
            notes.write(f"{sum(map(len, completion_ids))}\n")
        return [byte_share_ratio(tokens) for tokens in completion_ids]


class FileTransfer:
    """TRL's `WeightTransferProtocol`: a file that the server reads, labeled with the version."""

    def __init__(self, client: VLLMClient, path: Path, counts: Counts) -> None:
        self._client, self._path, self._counts = client, path, counts

    def init_weight_transfer(self) -> None:
        """Wait for the server."""
        self._client.wait_for_server_ready(poll_interval_s=0.2)
        self._client.init_weight_transfer_engine({})

    def pause(self) -> None:
        """Freeze what is generating."""
        self._client.pause()

    def send_weights(self, iterator: Iterator[tuple[str, torch.Tensor]]) -> None:
        """Have the server load the next version."""
        save_file({name: weight.detach().contiguous().clone() for name, weight in iterator}, self._path)
        self._client.start_weight_update()
        self._client.update_weights({"path": str(self._path)})
        self._counts.weight_syncs += 1
        requests.post(
            f"{self._client.server_url}/finish_weight_update",
            json={"weight_version": str(self._counts.weight_syncs)},
            timeout=READY_TIMEOUT_S,
        ).raise_for_status()

    def resume(self) -> None:
        """Go on."""
        self._client.resume()

    def destroy(self) -> None:
        """Nothing is held but the file."""


class DrainAtEnd(TrainerCallback):
    """Empties the queue when training ends: while it is full, TRL's child process cannot end and is waited for."""

    def __init__(self) -> None:
        self.trainer: Any = None

    def on_train_end(self, *_arguments: object, **_keywords: object) -> None:
        """Begin to empty it."""
        self.trainer.rollout_worker._stop_event_mp.set()
        threading.Thread(target=self._drain, daemon=True).start()

    def _drain(self) -> None:
        deadline_s = time.monotonic() + DRAIN_S
        while time.monotonic() < deadline_s:
            try:
                self.trainer.rollout_queue.get(timeout=0.2)
            except queue.Empty:
                continue
            except (EOFError, OSError, ValueError):
                return


@contextmanager
def serving(options: Options, model_dir: Path, counts: Counts, core: int) -> Iterator[dict[str, Any]]:
    """A server while the block runs; gives the arguments that TRL's trainer is to have."""
    port = options.port or _free_port()
    notes = model_dir.parent / "scored_tokens"
    notes.touch()
    server = _start(options, model_dir, port, core)
    url = f"http://127.0.0.1:{port}"
    try:
        with tempfile.TemporaryDirectory(dir=SHARED_MEMORY, prefix="trl_async-") as folder:
            weights = Path(folder) / "weights.safetensors"
            yield {
                "server_url": url,
                "reward_funcs": ByteShare(notes),
                "weight_transfer": FileTransfer(VLLMClient(url, READY_TIMEOUT_S), weights, counts),
                "callbacks": [DrainAtEnd()],
            }
        counts.scored_group_tokens = [int(line) for line in notes.read_text(encoding="utf-8").split()]
        counts.tokens_generated = sum(counts.scored_group_tokens)
    finally:
        _stop(server)


def _start(options: Options, model_dir: Path, port: int, core: int) -> "subprocess.Popen[bytes]":
    arguments = {
        "--host": "127.0.0.1",
        "--port": str(port),
        "--dtype": "float32",
        "--max-model-len": str(LONGEST_TOKENS),
        "--max-num-seqs": str(options.in_flight),
        "--weight-transfer-config": json.dumps({"backend": "shared_file"}),
    }
    command = [sys.executable, "-m", "examples.vllm_cpu", "serve", str(model_dir), "--enforce-eager"]
    command += ["--disable-uvicorn-access-log", *(part for pair in arguments.items() for part in pair)]
    cores = {core} if options.pin else os.sched_getaffinity(0)
    with (options.run_dir / "vllm_serve.log").open("wb") as log:
        return subprocess.Popen(
            command,
            env=os.environ | _environment(options, core),
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=lambda: os.sched_setaffinity(0, cores),
        )


def _environment(options: Options, core: int) -> dict[str, str]:
    pinned = {"VLLM_CPU_OMP_THREADS_BIND": str(core)} if options.pin else {}
    if not options.hooks:
        return pinned
    return pinned | {
        "RLSCOPE_RUN_DIR": str(options.run_dir.absolute()),
        "RLSCOPE_ROLE": "sampler",
        "RLSCOPE_WORKER_ID": "sampler",
        "RLSCOPE_GPU_COUNT": "1",
    }


def _stop(server: "subprocess.Popen[bytes]") -> None:
    """Have vLLM end in order, and end what of it does not."""
    os.kill(server.pid, signal.SIGTERM)
    try:
        server.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
