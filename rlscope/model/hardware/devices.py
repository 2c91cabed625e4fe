"""Devices and model shapes: peak rates, and bytes of weights and KV.

The peaks are those of the vendors' data sheets, dense bf16; a device that is not listed, or only a slice of one (MIG),
has none. Not covered: interconnects, power limits, and formats below 8 bits that are unpacked on the way.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Final

_VARIANTS: Final = frozenset({"MIG", "PCIE", "NVL", "3E"})
"""Words that name another variant of the same chip: a device matches them only if it lists them."""


@dataclass(frozen=True, slots=True)
class Device:
    """Peak figures of one GPU."""

    name: str
    bandwidth_bytes_per_s: float
    bf16_flop_per_s: float
    """Dense, without sparsity."""
    memory_bytes: float
    """As sold, in powers of ten; the driver's figure has priority if known."""
    words: frozenset[str]
    """Words that must all be in the driver's name of the device."""


def _device(name: str, words: str, *, terabytes_per_s: float, teraflop_per_s: float, gigabytes: float) -> Device:
    return Device(name, terabytes_per_s * 1e12, teraflop_per_s * 1e12, gigabytes * 1e9, frozenset(words.split()))


DEVICES: Final = (
    _device("A100 SXM 80 GB", "A100 SXM4 80GB", terabytes_per_s=2.039, teraflop_per_s=312, gigabytes=80),
    _device("A100 SXM 40 GB", "A100 SXM4 40GB", terabytes_per_s=1.555, teraflop_per_s=312, gigabytes=40),
    _device("A100 PCIe 80 GB", "A100 PCIE 80GB", terabytes_per_s=1.935, teraflop_per_s=312, gigabytes=80),
    _device("H100 SXM", "H100 80GB HBM3", terabytes_per_s=3.35, teraflop_per_s=989, gigabytes=80),
    _device("H100 NVL", "H100 NVL", terabytes_per_s=3.9, teraflop_per_s=835, gigabytes=94),
    _device("H100 PCIe", "H100 PCIE", terabytes_per_s=2.0, teraflop_per_s=756, gigabytes=80),
    _device("H800 SXM", "H800", terabytes_per_s=3.35, teraflop_per_s=989, gigabytes=80),
    _device("H200", "H200", terabytes_per_s=4.8, teraflop_per_s=989, gigabytes=141),
    _device("H20", "H20", terabytes_per_s=4.0, teraflop_per_s=148, gigabytes=96),
    _device("B200", "B200", terabytes_per_s=8.0, teraflop_per_s=2250, gigabytes=180),
    _device("GB200", "GB200", terabytes_per_s=8.0, teraflop_per_s=2500, gigabytes=186),
    _device("L40S", "L40S", terabytes_per_s=0.864, teraflop_per_s=362, gigabytes=48),
    _device("MI300X", "MI300X", terabytes_per_s=5.3, teraflop_per_s=1307, gigabytes=192),
    _device("MI325X", "MI325X", terabytes_per_s=6.0, teraflop_per_s=1307, gigabytes=256),
)
"""Data sheets of NVIDIA (A100, H100, H200, HGX B200, GB200 NVL72, L40S) and AMD (MI300X, and MI325X, the same chip with
other memory); the H800 is an H100 with slower links, and the H20 is as the AIConfigurator project describes it."""


def find_device(driver_name: str | None) -> Device | None:
    """Return the device with a driver's name ("NVIDIA H100 80GB HBM3"); None if it is not listed."""
    if driver_name is None:
        return None
    words = frozenset(re.findall(r"[A-Z0-9]+", driver_name.upper()))
    fitting = [device for device in DEVICES if device.words <= words and not words & _VARIANTS - device.words]
    return max(fitting, key=lambda device: len(device.words), default=None)


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Shape of the model as run.json describes it; None for missing entries."""

    parameters: int | None = None
    active_parameters: int | None = None
    """Parameters that one token uses; None for a dense model, which uses all of them."""
    layers: int | None = None
    kv_heads: int | None = None
    head_dim: int | None = None
    bytes_per_weight: float | None = None
    bytes_per_kv: float | None = None
    experts: int | None = None
    """Experts per layer that tokens are routed to; None or 0: a dense model."""
    experts_per_token: int | None = None
    kv_latent_dim: int | None = None
    """Values per token and layer of a compressed cache (MLA): the latent and the rotary part together."""
    sliding_window_tokens: int | None = None
    full_attention_layers: int | None = None
    """Layers whose cache grows with the context, if the others hold a window or a state. None: all, or unknown if there
    is a window."""

    @classmethod
    def of(cls, entries: Mapping[str, object] | None) -> "ModelShape":
        """Read the `model` entry of run.json; a value that is not a positive number counts as missing."""
        given = entries or {}
        sizes: dict[str, Any] = {name: _positive(given.get(name)) for name in ("bytes_per_weight", "bytes_per_kv")}
        counts = {each.name: _count(given.get(each.name)) for each in fields(cls) if each.name not in sizes}
        growing = _count(given.get("full_attention_layers"), least=0)
        return cls(**counts | sizes | {"full_attention_layers": growing})

    @property
    def has_experts(self) -> bool:
        """Whether the model is known to be a mixture of experts."""
        routed = self.experts is not None and self.experts > 1
        return routed or (self.active_parameters is not None and self.active_parameters < (self.parameters or 0))

    @property
    def parameters_per_token(self) -> int | None:
        """Parameters that one token is multiplied with; None if unknown."""
        if self.active_parameters is not None:
            return self.active_parameters
        return None if self.has_experts else self.parameters

    @property
    def weight_bytes(self) -> float | None:
        """Bytes of all weights."""
        if self.parameters is None or self.bytes_per_weight is None:
            return None
        return self.parameters * self.bytes_per_weight

    def kv_bytes_per_token(self, gpus: int = 1) -> float | None:
        """Bytes that one more token of context takes in an engine of `gpus` GPUs, on all of them together.

        The formula is 2 * layers * kv_heads * head_dim * bytes, keys and values (Ainslie et al. 2023, grouped-query
        attention); if there are fewer heads than GPUs, they are replicated. A compressed cache has layers * latent *
        bytes (DeepSeek-V2, 2024), a whole one on every GPU. Layers with a sliding window do not grow.
        """
        growing, per_layer = self._growing_layers, self._kv_bytes_per_layer(gpus)
        return None if growing is None or per_layer is None else growing * per_layer

    @property
    def _growing_layers(self) -> int | None:
        if self.full_attention_layers is not None:
            return self.full_attention_layers
        return self.layers if self.sliding_window_tokens is None else None

    def _kv_bytes_per_layer(self, gpus: int) -> float | None:
        """Bytes of one token in one layer."""
        if self.bytes_per_kv is None:
            return None
        if self.kv_latent_dim is not None:
            return self.kv_latent_dim * gpus * self.bytes_per_kv
        if self.kv_heads is None or self.head_dim is None:
            return None
        return 2 * max(self.kv_heads, gpus) * self.head_dim * self.bytes_per_kv


def _positive(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if 0 < value < float("inf") else None


def _count(value: object, *, least: int = 1) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value < 2**63:
        return None
    return int(value)
