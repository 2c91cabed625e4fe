"""GPU readings: a thread that polls NVML and writes `gpu_samples`.

Devices with GPM (Hopper and later) report the share of active SMs; others only whether any kernel ran. If sampling was
requested and the library or the GPU is missing, one warning is logged.
"""

import importlib
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar, cast

from rlscope_otel.buffers import RowBuffer
from rlscope_otel.faults import Faults

_T = TypeVar("_T")
_PERCENT = 100.0
_MILLIWATTS_PER_WATT = 1000.0
_STOP_TIMEOUT_S = 2.0
Handle = object


class Utilization(Protocol):
    """Result of nvmlDeviceGetUtilizationRates, in percent."""

    gpu: int


class Memory(Protocol):
    """Result of nvmlDeviceGetMemoryInfo, in bytes."""

    used: int
    total: int


class Nvml(Protocol):
    """The calls of pynvml that are used, so that a test can stand in for a GPU. Any of them may raise NVMLError."""

    def nvmlInit(self) -> None: ...  # noqa: D102
    def nvmlShutdown(self) -> None: ...  # noqa: D102
    def nvmlDeviceGetCount(self) -> int: ...  # noqa: D102
    def nvmlDeviceGetHandleByIndex(self, index: int) -> Handle: ...  # noqa: D102
    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> Handle: ...  # noqa: D102
    def nvmlDeviceGetUUID(self, device: Handle) -> str: ...  # noqa: D102
    def nvmlDeviceGetName(self, device: Handle) -> str: ...  # noqa: D102
    def nvmlDeviceGetUtilizationRates(self, device: Handle) -> Utilization: ...  # noqa: D102
    def nvmlDeviceGetMemoryInfo(self, device: Handle) -> Memory: ...  # noqa: D102
    def nvmlDeviceGetPowerUsage(self, device: Handle) -> int: ...  # noqa: D102


class Gpm(Protocol):
    """Performance counters of one device since the reading before."""

    def sm_active_ratio(self) -> float | None:
        """Share of the time and of the SMs with a warp resident, 0..1; None for the first reading."""
        ...


@dataclass(slots=True)
class Gpu:
    """One GPU of this worker, by the name that its rows carry."""

    gpu_id: str
    handle: Handle
    gpm: Gpm | None


class GpuSampler:
    """Reads this worker's GPUs at an interval, on a thread of its own, until stopped."""

    def __init__(
        self, nvml: Nvml, gpus: Sequence[Gpu], buffer: RowBuffer, now_ns: Callable[[], int], interval_s: float
    ) -> None:
        self._nvml = nvml
        self._gpus = gpus
        self._buffer = buffer
        self._now_ns = now_ns
        self._interval_s = interval_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="rlscope-gpu", daemon=True)

    def start(self) -> None:
        """Begin to read."""
        self._thread.start()

    def stop(self) -> None:
        """Stop reading. Waits for a reading in progress, but not for a driver that hangs."""
        self._stop.set()
        self._thread.join(_STOP_TIMEOUT_S)

    def read(self) -> None:
        """Write one row per GPU; None for what a device does not report."""
        for gpu in self._gpus:
            sm_active_ratio = _or_none(gpu.gpm.sm_active_ratio) if gpu.gpm else None
            utilization = _or_none(lambda gpu=gpu: self._nvml.nvmlDeviceGetUtilizationRates(gpu.handle))
            memory = _or_none(lambda gpu=gpu: self._nvml.nvmlDeviceGetMemoryInfo(gpu.handle))
            power_mw = _or_none(lambda gpu=gpu: self._nvml.nvmlDeviceGetPowerUsage(gpu.handle))
            self._buffer.add(
                (
                    gpu.gpu_id,
                    self._now_ns(),
                    sm_active_ratio,
                    utilization.gpu / _PERCENT if utilization else None,
                    memory.used if memory else None,
                    power_mw / _MILLIWATTS_PER_WATT if power_mw is not None else None,
                    "nvml" if sm_active_ratio is None else "gpm",
                )
            )

    def _loop(self) -> None:
        for gpu in self._gpus:
            if gpu.gpm:
                _or_none(gpu.gpm.sm_active_ratio)
        while not self._stop.wait(self._interval_s):
            self.read()
        _or_none(self._nvml.nvmlShutdown)


def load_nvml(faults: Faults) -> Nvml | None:
    """Return the initialized library. None, with one warning, if the library or the driver is missing."""
    try:
        nvml = cast(Nvml, importlib.import_module("pynvml"))
        nvml.nvmlInit()
    except ImportError:
        faults.note("gpu", "GPUs are not sampled: pynvml is not installed (pip install rlscope-otel[gpu])")
    except Exception as error:  # NVMLError, which is known only once the library is.
        faults.note("gpu", f"GPUs are not sampled: {error}")
    else:
        return nvml
    return None


def find_gpus(nvml: Nvml, gpu_ids: Sequence[str], gpu_count: int, faults: Faults) -> list[Gpu]:
    """This worker's GPUs: those named, else those visible to CUDA, else all of the machine if their number fits."""
    wanted = list(gpu_ids) or [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    try:
        if not wanted and gpu_count == nvml.nvmlDeviceGetCount():
            wanted = [str(index) for index in range(gpu_count)]
        if not wanted and gpu_count:
            faults.note(
                "gpu", "GPUs are not sampled: gpu_count is not the machine's; pass gpu_ids= to name this worker's"
            )
        return [_gpu(nvml, name, keep_name=bool(gpu_ids)) for name in wanted[:gpu_count]]
    except Exception as error:  # NVMLError
        faults.note("gpu", f"GPUs are not sampled: {error}")
        return []


def description_of(nvml: Nvml, gpus: Sequence[Gpu]) -> Mapping[str, object]:
    """Return the devices' own description, as fields of the worker's identity."""
    first = gpus[0].handle
    memory = _or_none(lambda: nvml.nvmlDeviceGetMemoryInfo(first))
    return {
        "gpu_ids": tuple(gpu.gpu_id for gpu in gpus),
        "device_name": _or_none(lambda: nvml.nvmlDeviceGetName(first)),
        "device_memory_bytes": memory.total if memory else None,
    }


def _gpu(nvml: Nvml, name: str, *, keep_name: bool) -> Gpu:
    by_index = name.isdecimal()
    handle = nvml.nvmlDeviceGetHandleByIndex(int(name)) if by_index else nvml.nvmlDeviceGetHandleByUUID(name)
    gpu_id = name if keep_name else _or_none(lambda: nvml.nvmlDeviceGetUUID(handle)) or name
    return Gpu(gpu_id, handle, _or_none(lambda: gpm_of(nvml, handle)))


def gpm_of(nvml: Nvml, handle: Handle) -> Gpm | None:
    """Return the performance counters of a device. None if the device or its driver has none."""
    from rlscope_otel.gpm import DeviceGpm, GpmNvml

    library = cast(GpmNvml, nvml)
    return DeviceGpm(library, handle) if library.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice else None


def _or_none(read: Callable[[], _T]) -> _T | None:
    """Return a reading. None if the device does not support it or is being reset."""
    try:
        return read()
    except Exception:  # NVMLError, which is known only once the library is.
        return None
