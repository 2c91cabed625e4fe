from dataclasses import replace

import pytest

from rlscope.model.hardware.devices import ModelShape, find_device

LLAMA_8B = ModelShape(parameters=8_030_261_248, layers=32, kv_heads=8, head_dim=128, bytes_per_weight=2, bytes_per_kv=2)


@pytest.mark.parametrize(
    ("driver_name", "device"),
    [
        ("NVIDIA H100 80GB HBM3", "H100 SXM"),
        ("NVIDIA H100 PCIe", "H100 PCIe"),
        ("NVIDIA H100 NVL", "H100 NVL"),
        ("NVIDIA A100-SXM4-80GB", "A100 SXM 80 GB"),
        ("NVIDIA A100-SXM4-40GB", "A100 SXM 40 GB"),
        ("NVIDIA A100 80GB PCIe", "A100 PCIe 80 GB"),
        ("NVIDIA H200", "H200"),
        ("NVIDIA H20", "H20"),
        ("NVIDIA B200", "B200"),
        ("NVIDIA GB200", "GB200"),
        ("AMD Instinct MI300X", "MI300X"),
        ("AMD Instinct MI325X", "MI325X"),
        # A slice, a variant and another device have no peaks.
        *((name, None) for name in (None, "", "CPU core", "NVIDIA GH200 480GB", "NVIDIA H200 NVL", "NVIDIA H20-3e")),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", None),
    ],
)
def test_a_device_is_found_by_the_name_that_its_driver_gives(driver_name: str | None, device: str | None) -> None:
    found = find_device(driver_name)
    assert (found and found.name) == device


def test_the_model_entry_of_a_run_is_read_and_what_is_no_number_is_missing() -> None:
    entries = {"name": "m", "parameters": 7e9, "layers": 28, "kv_heads": True, "head_dim": -1, "bytes_per_weight": 0.5}
    assert ModelShape.of(entries) == ModelShape(parameters=7_000_000_000, layers=28, bytes_per_weight=0.5)
    assert ModelShape.of(None) == ModelShape()


def test_heads_fewer_than_the_gpus_are_held_more_than_once() -> None:
    assert LLAMA_8B.kv_bytes_per_token(gpus=8) == 131_072
    assert LLAMA_8B.kv_bytes_per_token(gpus=16) == 262_144
    assert replace(LLAMA_8B, head_dim=None).kv_bytes_per_token(gpus=16) is None


@pytest.mark.parametrize(("whole", "token_bytes"), [(1, 2), (None, None)], ids=["one layer without", "not known which"])
def test_layers_with_a_window_take_nothing_for_one_more_token(whole, token_bytes):
    sizes = {"layers": 4, "kv_heads": 1, "head_dim": 1, "bytes_per_kv": 1, "sliding_window_tokens": 100}
    assert ModelShape(**sizes, full_attention_layers=whole).kv_bytes_per_token() == token_bytes
