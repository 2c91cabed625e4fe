"""GPU readings: a thread that polls NVML and writes `gpu_samples`.

Devices with GPM, NVML's performance counters (Hopper and later), report the share of active SMs; others only whether
any kernel ran. GPM needs no profiling permission, and does not tell MIG instances apart. If sampling was requested and
the library or the GPU is missing, one warning is logged.
"""

import importlib
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rlscope_otel.buffers import RowBuffer
from rlscope_otel.faults import or_none

_PERCENT = 100.0
_STOP_TIMEOUT_S = 2.0
Nvml = Any
"""The module pynvml, which has no types. Any of its functions may raise NVMLError."""


class Gpm:
    """One device's performance counters; two samples are kept and swapped, so nothing is allocated after the start."""

    def __init__(self, nvml: Nvml, handle: object) -> None:
        self._nvml = nvml
        self._handle = handle
        self._before, self._now = nvml.nvmlGpmSampleAlloc(), nvml.nvmlGpmSampleAlloc()
        self._has_before = False

    def sm_active_ratio(self) -> float | None:
        """Share of the time and of the SMs with a warp resident since the last reading, 0..1; None for the first."""
        self._nvml.nvmlGpmSampleGet(self._handle, self._now)
        ratio = self._between_samples() if self._has_before else None
        self._before, self._now = self._now, self._before
        self._has_before = True
        return ratio

    def _between_samples(self) -> float | None:
        request = self._nvml.c_nvmlGpmMetricsGet_t()
        request.version = self._nvml.NVML_GPM_METRICS_GET_VERSION
        request.numMetrics = 1
        request.sample1, request.sample2 = self._before, self._now
        metric = request.metrics[0]
        metric.metricId = self._nvml.NVML_GPM_METRIC_SM_UTIL
        self._nvml.nvmlGpmMetricsGet(request)
        return metric.value / _PERCENT if metric.nvmlReturn == 0 else None


@dataclass(slots=True)
class Gpu:
    """One GPU of this worker, by the name that its rows carry."""

    gpu_id: str
    handle: object
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
            sm_active_ratio = or_none(gpu.gpm.sm_active_ratio) if gpu.gpm else None
            utilization = or_none(lambda gpu=gpu: self._nvml.nvmlDeviceGetUtilizationRates(gpu.handle))
            self._buffer.add(
                (
                    gpu.gpu_id,
                    self._now_ns(),
                    sm_active_ratio,
                    utilization.gpu / _PERCENT if utilization else None,
                    "nvml" if sm_active_ratio is None else "gpm",
                )
            )

    def _loop(self) -> None:
        for gpu in self._gpus:
            if gpu.gpm:
                or_none(gpu.gpm.sm_active_ratio)
        while not self._stop.wait(self._interval_s):
            self.read()
        or_none(self._nvml.nvmlShutdown)


def load_nvml() -> Nvml:
    """Return the initialized library. Raises ImportError if it is not installed, and NVMLError without a driver."""
    try:
        nvml = importlib.import_module("pynvml")
    except ImportError:
        raise ImportError("pynvml is not installed (pip install rlscope-otel[gpu])") from None
    nvml.nvmlInit()
    return nvml


def find_gpus(nvml: Nvml, gpu_ids: Sequence[str], gpu_count: int) -> list[Gpu]:
    """This worker's GPUs: those named, else those visible to CUDA, else all of the machine if their number fits.

    Raises LookupError if it does not fit, and NVMLError.
    """
    wanted = list(gpu_ids) or [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    if not wanted and gpu_count == nvml.nvmlDeviceGetCount():
        wanted = [str(index) for index in range(gpu_count)]
    if not wanted and gpu_count:
        raise LookupError("gpu_count is not the machine's; pass gpu_ids= to name this worker's")
    return [_gpu(nvml, name, keep_name=bool(gpu_ids)) for name in wanted[:gpu_count]]


def _gpu(nvml: Nvml, name: str, *, keep_name: bool) -> Gpu:
    by_index = name.isdecimal()
    handle = nvml.nvmlDeviceGetHandleByIndex(int(name)) if by_index else nvml.nvmlDeviceGetHandleByUUID(name)
    gpu_id = name if keep_name else or_none(lambda: nvml.nvmlDeviceGetUUID(handle)) or name
    has_gpm = or_none(lambda: nvml.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice)
    return Gpu(gpu_id, handle, or_none(lambda: Gpm(nvml, handle)) if has_gpm else None)
