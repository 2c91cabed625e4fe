"""GPM, NVML's performance counters (Hopper and later): activity of the SMs between two samples of a device.

Readings need no profiling permission. They are per device: MIG instances are not distinguished.
"""

from typing import Protocol

Handle = object
Sample = object


class Support(Protocol):
    """Result of nvmlGpmQueryDeviceSupport."""

    isSupportedDevice: int


class Metric(Protocol):
    """One value asked for, and NVML's return code for it (0: good)."""

    metricId: int
    nvmlReturn: int
    value: float


class MetricsGet(Protocol):
    """The request for values between two samples."""

    version: int
    numMetrics: int
    sample1: Sample
    sample2: Sample
    metrics: list[Metric]


class GpmNvml(Protocol):
    """The calls of pynvml that GPM needs."""

    NVML_GPM_METRICS_GET_VERSION: int
    NVML_GPM_METRIC_SM_UTIL: int

    def nvmlGpmQueryDeviceSupport(self, device: Handle) -> Support: ...  # noqa: D102
    def nvmlGpmSampleAlloc(self) -> Sample: ...  # noqa: D102
    def nvmlGpmSampleGet(self, device: Handle, gpmSample: Sample) -> Sample: ...  # noqa: D102
    def nvmlGpmMetricsGet(self, metricsGet: MetricsGet) -> object: ...  # noqa: D102
    def c_nvmlGpmMetricsGet_t(self) -> MetricsGet: ...  # noqa: D102


class DeviceGpm:
    """One device's counters; two samples are kept and swapped, so nothing is allocated after the start."""

    def __init__(self, nvml: GpmNvml, handle: Handle) -> None:
        self._nvml = nvml
        self._handle = handle
        self._before: Sample = nvml.nvmlGpmSampleAlloc()
        self._now: Sample = nvml.nvmlGpmSampleAlloc()
        self._has_before = False

    def sm_active_ratio(self) -> float | None:
        """Share of the SMs that were busy since the reading before, 0..1; None for the first."""
        self._nvml.nvmlGpmSampleGet(self._handle, self._now)
        ratio = self._between_samples() if self._has_before else None
        self._before, self._now = self._now, self._before
        self._has_before = True
        return ratio

    def _between_samples(self) -> float | None:
        request = self._nvml.c_nvmlGpmMetricsGet_t()
        request.version = self._nvml.NVML_GPM_METRICS_GET_VERSION
        request.numMetrics = 1
        request.sample1 = self._before
        request.sample2 = self._now
        request.metrics[0].metricId = self._nvml.NVML_GPM_METRIC_SM_UTIL
        self._nvml.nvmlGpmMetricsGet(request)
        metric = request.metrics[0]
        return metric.value / 100.0 if metric.nvmlReturn == 0 else None
