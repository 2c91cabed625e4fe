"""Prior for decode passes and prefill from device and model, before anything is measured.

A pass streams its weights at a share of the peak bandwidth, computes at a share of the peak rate, reads the KV cache at
a share of the bandwidth, launches its layers, and adds up the parts of the GPUs that share it. The shares and their
spread are those of dense bf16 models of 7 to 32 billion parameters on one Hopper GPU
(`benchmarks/data/decode_latency.csv`); smaller models and older devices reach less, which is why a run's own passes
soon outweigh them. Launches and links are fitted to published engines (`benchmarks/plan_priors.py`). Not covered:
engines that span nodes; prompts in the prefix cache, which cost nothing; and attention within very long prompts.
"""

import math
from dataclasses import dataclass
from typing import Final

import numpy as np

from rlscope.model.hardware.devices import Device, ModelShape

PREFILL_EFFICIENCY: Final = 0.5
"""Share of the peak rate that prefill reaches: an assumption; most engines reach 0.3 to 0.7."""
_FLOP_PER_PARAMETER: Final = 2.0
"""One multiplication and one addition per parameter and token (Kaplan et al. 2020)."""
_LOG_SD: Final = 0.15
"""Log deviation of each of the three shares, on one GPU."""
_LOG_SD_MANY_GPUS: Final = 0.25
"""Log deviation if GPUs share a pass."""
_LOG_SD_EXPERTS: Final = 0.35
"""Log deviation for mixtures of experts, whose kernels reach very different shares."""
_LAYER_S: Final = 3.3e-5
"""Seconds that a layer takes besides reading, computing and attention, on one GPU. This figure and the next three are
fitted to 245 published latencies of vLLM and SGLang with 1 to 8 GPUs, with the shares above
(`benchmarks/plan_priors.py`, which also leaves out each model and each device)."""
_LAYER_S_PER_DOUBLING: Final = 1.4e-5
"""Increase of the above with each doubling of the GPUs that share the layer."""
_EXPERT_LAYER_S: Final = 4.4e-5
"""Additional seconds of a layer with experts: routing, and one small multiplication for each expert."""
_LINK_BYTES_PER_S: Final = 6.0e10
"""Rate at which GPUs add up their parts of a layer. It is far below that of the links, as it also holds for everything
else that grows with requests and is not divided among GPUs."""
_SUMS_PER_LAYER: Final = 2.0
"""Sums over all GPUs in a layer: after attention and after the feed-forward part (Shoeybi et al. 2019, section 3)."""
_ACTIVATION_BYTES: Final = 2.0
"""Bytes of a value between layers: bf16, also where the weights are smaller."""
_OVERHEAD_LOG_SD: Final = 0.3


@dataclass(frozen=True, slots=True)
class LogNormal:
    """A positive quantity: its median, and the standard deviation of its logarithm."""

    median: float
    log_sd: float

    def at(self, deviation: float) -> float:
        """Value that is so many standard deviations above the median."""
        return float(self.median * np.exp(self.log_sd * deviation))


SHARPNESS: Final = LogNormal(2.4, 0.5)
"""Exponent p of GPUs: 1.5 to 3.8 in fits of measured kernels."""
HIT_RATE: Final = LogNormal(0.06, 1.0)
"""Hit rate: one expert of sixteen per token."""
_USUAL_OVERHEAD: Final = LogNormal(1.5e-3, 1.2)
"""Overhead of a pass if the number of layers is unknown; measured engines have 0.1 to 5 ms."""


@dataclass(frozen=True, slots=True)
class ShapePrior:
    """Prior of the shape of a curve.

    Medians and spreads over fits of the table of measured kernels (`benchmarks/latency_fit.py`, which also reports how
    well those of the other devices and models carry over to one that is left out).
    """

    sharpness: LogNormal
    growth: LogNormal
    """Elasticity of the flat branch."""


USUAL_SHAPES: Final = ShapePrior(SHARPNESS, growth=LogNormal(0.013, 1.0))


@dataclass(frozen=True, slots=True)
class Shares:
    """Shares of the device's peaks, 0..1, that a pass reaches if nothing is measured."""

    weight_bandwidth_ratio: float = 0.75
    """Share of the bandwidth for streaming weights: 0.66 to 0.79 in the table."""
    compute_ratio: float = 0.8
    """Share of the multiplication rate at large batches."""
    kv_bandwidth_ratio: float = 0.85
    """Share of the bandwidth for reading the KV cache in attention: 0.78 to 0.92 in the table."""


@dataclass(frozen=True, slots=True)
class ExpertPrior:
    """Parts of a mixture of experts that a dense model lacks."""

    experts_s: LogNormal
    """Seconds to read all experts."""
    hit_rate: LogNormal
    """Parameter r of `expert_hit_s`."""


@dataclass(frozen=True, slots=True)
class HardwarePrior:
    """Expected cost of a pass of one engine."""

    flat_s: LogNormal
    """Seconds to stream the weights that every pass reads."""
    per_request_s: LogNormal
    kv_s_per_token: LogNormal | None
    """None if the shape of the KV cache is unknown."""
    overhead_s: LogNormal
    """Seconds of launching the layers of a pass."""
    experts: ExpertPrior | None


USUAL_SHARES: Final = Shares()


def hardware_prior(
    shape: ModelShape, device: Device | None, gpus: int, shares: Shares = USUAL_SHARES
) -> HardwarePrior | None:
    """Expectations for an engine of `gpus` GPUs; None if device, parameters, their bytes or experts are unknown.

    a = weight bytes / (gpus * bandwidth * 0.75); c = 2 * parameters per token / (gpus * rate * 0.8), and the links;
    KV: bytes per token / (gpus * bandwidth * 0.85). Roofline (Williams, Waterman and Patterson 2009) with the usual
    shares; weights of one byte are assumed to be multiplied at twice the rate. For a mixture of experts, the parts that
    every pass reads and the experts follow from total and active parameters and the share k/E of experts per token.
    """
    per_token = shape.parameters_per_token
    if device is None or per_token is None or shape.parameters is None or shape.bytes_per_weight is None or gpus < 1:
        return None
    expert_ratio = _expert_ratio(shape)
    routed = None if expert_ratio is None else _routed_parameters(shape, expert_ratio)
    if shape.has_experts and routed is None:
        return None
    streams_per_s = gpus * device.bandwidth_bytes_per_s * shares.weight_bandwidth_ratio / shape.bytes_per_weight
    flop_per_s = gpus * device.bf16_flop_per_s * (2 if shape.bytes_per_weight <= 1 else 1) * shares.compute_ratio
    spread = _LOG_SD if gpus == 1 else _LOG_SD_MANY_GPUS
    experts = None
    if expert_ratio is not None and routed is not None:
        spread = _LOG_SD_EXPERTS
        experts = ExpertPrior(LogNormal(routed / streams_per_s, spread), LogNormal(-math.log1p(-expert_ratio), spread))
    return HardwarePrior(
        flat_s=LogNormal((shape.parameters - (routed or 0)) / streams_per_s, spread),
        per_request_s=LogNormal(_FLOP_PER_PARAMETER * per_token / flop_per_s + _links_s(shape, gpus), spread),
        kv_s_per_token=_kv_prior(shape, device, gpus, shares),
        overhead_s=_overhead(shape, gpus),
        experts=experts,
    )


def _overhead(shape: ModelShape, gpus: int) -> LogNormal:
    """Seconds of the layers of a pass: l (a + d log2 g), and l e more with experts. Own form, see `_LAYER_S`."""
    if shape.layers is None:
        return _USUAL_OVERHEAD
    layer_s = _LAYER_S + _LAYER_S_PER_DOUBLING * math.log2(gpus) + _EXPERT_LAYER_S * shape.has_experts
    return LogNormal(shape.layers * layer_s, _OVERHEAD_LOG_SD)


def _links_s(shape: ModelShape, gpus: int) -> float:
    """Seconds that one more request keeps the links busy in a pass: 2 sums of h values a layer; 0 if unknown.

    A ring moves 2 (g - 1) / g of what it sums (Patarasuk and Yuan 2009). The width h follows from N = 12 l h^2
    parameters per token (Kaplan et al. 2020), within 10% of the decoders in `benchmarks/plan_priors.py`.
    """
    layers, parameters = shape.layers, shape.parameters_per_token
    if layers is None or parameters is None:
        return 0.0
    width = math.sqrt(parameters / (12 * layers))
    ring_bytes = 2 * (gpus - 1) / gpus * width * _ACTIVATION_BYTES
    return layers * _SUMS_PER_LAYER * ring_bytes / _LINK_BYTES_PER_S


def _kv_prior(shape: ModelShape, device: Device, gpus: int, shares: Shares) -> LogNormal | None:
    token_bytes = shape.kv_bytes_per_token(gpus)
    if not token_bytes:
        return None
    return LogNormal(token_bytes / (gpus * device.bandwidth_bytes_per_s * shares.kv_bandwidth_ratio), _LOG_SD)


def _routed_parameters(shape: ModelShape, expert_ratio: float) -> float | None:
    """Parameters of all experts: total - active = (1 - k/E) of them. None if unknown."""
    if shape.active_parameters is None or shape.parameters is None:
        return None
    routed = (shape.parameters - shape.active_parameters) / (1 - expert_ratio)
    return routed if 0 < routed < shape.parameters else None


def _expert_ratio(shape: ModelShape) -> float | None:
    """Share k/E of the experts that a token is routed to; None if dense or unknown."""
    if shape.experts is None or shape.experts_per_token is None or shape.experts_per_token >= shape.experts:
        return None
    return shape.experts_per_token / shape.experts


def expected_prefill_tokens_per_s(
    shape: ModelShape, device: Device | None, gpus: int, peak_ratio: float = PREFILL_EFFICIENCY
) -> float | None:
    """Prompt tokens per second of an engine of `gpus` GPUs: rate * share / (2 * parameters per token); None if unknown.

    Compute-bound side of the roofline (Williams, Waterman and Patterson 2009).
    """
    if device is None or shape.parameters_per_token is None:
        return None
    flop_per_s = gpus * device.bf16_flop_per_s * peak_ratio
    return flop_per_s / (_FLOP_PER_PARAMETER * shape.parameters_per_token)
