"""The weights that samplers use next: one copy in shared memory and the version it carries."""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.context import SpawnContext
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

NOTHING_YET = -1


class WeightMailbox:
    """Written by the trainer, read by any number of samplers while their samples are running."""

    def __init__(self, context: SpawnContext, size_bytes: int) -> None:
        self._weights = context.RawArray(ctypes.c_byte, size_bytes)
        self._version = context.RawValue(ctypes.c_int64, NOTHING_YET)
        self._lock = context.Lock()
        self.size_bytes = size_bytes

    @property
    def version(self) -> int:
        """Last version published: 0 for the initial weights, NOTHING_YET before those."""
        return self._version.value

    def publish(self, weights: "Tensor", version: int) -> None:
        """Replace the weights and their version in one step, as seen by a reader."""
        with self._lock:
            ctypes.memmove(self._weights, weights.data_ptr(), self.size_bytes)
            self._version.value = version

    @contextmanager
    def held(self) -> Iterator[int]:
        """Keep the weights from being replaced; gives the version they carry."""
        with self._lock:
            yield self._version.value

    def copy_into(self, weights: "Tensor") -> None:
        """Copy the weights out; for use while they are held."""
        ctypes.memmove(weights.data_ptr(), self._weights, self.size_bytes)
