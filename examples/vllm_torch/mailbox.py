"""The newest weights: one file in shared memory, and the version that it holds."""

import ctypes
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from multiprocessing.context import SpawnContext
from pathlib import Path
from typing import Final

from torch import Tensor

_SHARED_MEMORY = Path("/dev/shm")
_FILE = "weights.safetensors"
INITIAL: Final = 0


def shared_folder() -> Path:
    """A new folder in memory where there is one, else on disk."""
    return Path(tempfile.mkdtemp(prefix="vllm_torch-", dir=_SHARED_MEMORY if _SHARED_MEMORY.is_dir() else None))


class Mailbox:
    """Written by the trainer, read by the engine; whoever holds it keeps the other out."""

    def __init__(self, context: SpawnContext, folder: Path) -> None:
        self.path = folder / _FILE
        self._lock = context.Lock()
        self._version = context.RawValue(ctypes.c_int64, INITIAL)

    @property
    def version(self) -> int:
        """The version in the file; the initial one is in the checkpoint instead."""
        return self._version.value

    def publish(self, weights: Mapping[str, Tensor], version: int) -> int:
        """Replace the weights; returns the bytes written."""
        from safetensors.torch import save_file

        written = self.path.with_suffix(".new")
        save_file({name: weight.detach().contiguous() for name, weight in weights.items()}, written)
        with self._lock:
            os.replace(written, self.path)
            self._version.value = version
        return self.path.stat().st_size

    @contextmanager
    def held(self) -> Iterator[int]:
        """The version in the file, which stays the same meanwhile."""
        with self._lock:
            yield self._version.value
