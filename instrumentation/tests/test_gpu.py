from types import SimpleNamespace

import pytest
from rlscope_otel import gpu, start_run
from rlscope_otel.buffers import RowBuffer

from tests.waiting import until


class FakeNvml:
    """Two GPUs; GPM where told. Raises what a device without a feature raises."""

    NVML_GPM_METRICS_GET_VERSION = 1
    NVML_GPM_METRIC_SM_UTIL = 2

    def __init__(self, has_gpm: bool = True, has_utilization: bool = True) -> None:
        self.has_gpm = has_gpm
        self.has_utilization = has_utilization
        self.samples_allocated = 0
        self.readings = [0, 0]
        self.closed = False

    def nvmlInit(self) -> None: ...

    def nvmlShutdown(self) -> None:
        self.closed = True

    def nvmlDeviceGetCount(self) -> int:
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        if index > 1:
            raise RuntimeError("Invalid Argument")
        return index

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> int:
        return int(uuid.removeprefix("GPU-"))

    def nvmlDeviceGetUUID(self, device: int) -> str:
        return f"GPU-{device}"

    def nvmlDeviceGetName(self, device: int) -> str:
        return "H200"

    def nvmlDeviceGetUtilizationRates(self, device: int) -> SimpleNamespace:
        if not self.has_utilization:
            raise RuntimeError("Not Supported")
        return SimpleNamespace(gpu=80 + device, memory=0)

    def nvmlGpmQueryDeviceSupport(self, device: int) -> SimpleNamespace:
        return SimpleNamespace(isSupportedDevice=int(self.has_gpm))

    def nvmlGpmSampleAlloc(self) -> dict[str, float]:
        self.samples_allocated += 1
        return {}

    def nvmlGpmSampleGet(self, device: int, sample: dict[str, float]) -> dict[str, float]:
        self.readings[device] += 1
        sample["reading"] = self.readings[device]
        return sample

    def c_nvmlGpmMetricsGet_t(self) -> SimpleNamespace:
        return SimpleNamespace(metrics=[SimpleNamespace(nvmlReturn=0, value=0.0, metricId=0)])

    def nvmlGpmMetricsGet(self, request: SimpleNamespace) -> None:
        assert request.sample2["reading"] == request.sample1["reading"] + 1
        assert (request.version, request.numMetrics, request.metrics[0].metricId) == (1, 1, 2)
        request.metrics[0].value = 25.0


def read_thrice(nvml: FakeNvml) -> list[tuple[object, ...]]:
    buffer = RowBuffer(limit=100, pressed_at=100, wake=lambda: None)
    gpus = gpu.find_gpus(nvml, ("0",), 1)
    sampler = gpu.GpuSampler(nvml, gpus, buffer, lambda: 7, 1.0)
    for _ in range(3):
        sampler.read()
    return buffer.oldest(100)


def test_with_gpm_a_row_says_how_much_of_the_sms_was_active_since_the_row_before():
    nvml = FakeNvml()
    assert read_thrice(nvml) == [
        ("0", 7, None, 0.80, "nvml"),
        ("0", 7, 0.25, 0.80, "gpm"),
        ("0", 7, 0.25, 0.80, "gpm"),
    ]
    assert nvml.samples_allocated == 2


@pytest.mark.parametrize(("has_utilization", "busy_ratio"), [(True, 0.80), (False, None)])
def test_without_gpm_a_row_says_what_the_device_tells(has_utilization, busy_ratio):
    nvml = FakeNvml(has_gpm=False, has_utilization=has_utilization)
    assert read_thrice(nvml)[1] == ("0", 7, None, busy_ratio, "nvml")


@pytest.mark.parametrize(
    ("gpu_ids", "visible", "gpu_count", "found"),
    [
        (("1",), "", 1, ["1"]),
        ((), "1,0", 1, ["GPU-1"]),
        ((), "GPU-1", 1, ["GPU-1"]),
        ((), "", 2, ["GPU-0", "GPU-1"]),
        ((), "", 0, []),
    ],
)
def test_a_worker_samples_the_gpus_that_are_its_own(monkeypatch, gpu_ids, visible, gpu_count, found):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert [one.gpu_id for one in gpu.find_gpus(FakeNvml(), gpu_ids, gpu_count)] == found


@pytest.mark.parametrize(("gpu_ids", "said"), [((), "pass gpu_ids="), (("9",), "Invalid Argument")])
def test_a_worker_that_cannot_find_its_gpus_says_so_once_and_samples_none(
    tmp_path, rows, monkeypatch, caplog, gpu_ids, said
):
    monkeypatch.setattr(gpu, "load_nvml", FakeNvml)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    start_run(tmp_path, "sampler", "w0", gpu_ids=gpu_ids, gpu_count=1, gpu_interval_s=0.001).stop()
    assert (caplog.text.count(said), len(caplog.records), rows("gpu_samples")) == (1, 1, [])


def test_a_run_samples_its_gpus_and_describes_them_until_it_stops(tmp_path, rows, worker, monkeypatch):
    nvml = FakeNvml()
    monkeypatch.setattr(gpu, "load_nvml", lambda: nvml)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    with start_run(tmp_path, "sampler", "w0", gpu_count=2, gpu_interval_s=0.001):
        until(lambda: nvml.readings[1] >= 3)
    found = rows("gpu_samples")
    assert {row["gpu_id"] for row in found} == {"GPU-0", "GPU-1"}
    assert {row["source"] for row in found} == {"gpm"}
    assert worker("w0")["gpu_ids"] == ["GPU-0", "GPU-1"]
    assert worker("w0")["device_name"] == "H200"
    assert nvml.closed


def test_without_a_driver_or_a_library_sampling_is_one_warning_and_no_rows(tmp_path, rows, caplog, monkeypatch):
    monkeypatch.setenv("RLSCOPE_GPU_INTERVAL_S", "0.001")

    def missing(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr("importlib.import_module", missing)
    with start_run(tmp_path, "sampler", "w0"):
        pass
    assert rows("gpu_samples") == []
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "install rlscope-otel[gpu]" in caplog.text


def test_a_run_whose_sampling_thread_cannot_start_records_the_rest(tmp_path, rows, monkeypatch):
    def refuse(_: gpu.GpuSampler) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(gpu, "load_nvml", FakeNvml)
    monkeypatch.setattr(gpu.GpuSampler, "start", refuse)
    with start_run(tmp_path, "sampler", "w0", gpu_ids=("0",), gpu_interval_s=1) as run:
        run.engine_step(0, 1)
    assert (run.faults.counts, len(rows("engine_steps"))) == ({"gpu": 1}, 1)
