"""Say what samplers spend their time on, and what would make sampling faster in this run."""

from collections.abc import Mapping
from typing import Final

import polars as pl

from rlscope import format as fmt
from rlscope.analysis.result import AnalysisResult
from rlscope.diagnose.evidence import weighted_mean
from rlscope.model.engine_cost import SPECULATIVE_RATIO
from rlscope.reports.text.phases import judged_states
from rlscope.reports.text.states import state_of

_NAMED_RATIO: Final = 0.05
"""Least share of the samplers' time that is named."""
_BY_STATE: Final = {
    "prefilling": (0.20, "Check that prefix caching computes the prompt of a group only once."),
    "between_passes": (0.10, "Asynchronous scheduling and CUDA graphs shorten the gaps."),
}
"""Share of the samplers' time from which a state has a remedy of its own, and that remedy."""
_BY_FINDING: Final = {
    "full_kv_cache": "The KV cache limits the batch: a larger or quantized cache holds more requests.",
    "underfilled_engines": "More requests per engine would take hardly more time.",
}
_DECODING: Final = "At this batch size, quantization, speculative decoding or tensor parallelism speeds up decoding."
_DECODING_OF_DRAFTS: Final = "At this batch size, quantization or tensor parallelism speeds up decoding."


def sampling_words(analysis: AnalysisResult) -> str:
    """Return the shares of the samplers' time, and a remedy for what stands out; empty without forward passes."""
    shares = _shares(analysis)
    if not shares.get("decoding"):
        return ""
    named = [
        f"{fmt.percent(share)} {state_of(name).label}{_batch_words(analysis) if name == 'decoding' else ''}"
        for name, share in shares.items()
        if share >= _NAMED_RATIO
    ]
    return f"Sampler time: {fmt.listed(named)}. {_remedy(analysis, shares)}"


def _shares(analysis: AnalysisResult) -> dict[str, float]:
    """Return the share of the samplers' time by state, the largest first."""
    spent_gpu_s = dict[str, float]()
    for key, gpu_s in judged_states(analysis).items():
        if key.role == "sampler":
            spent_gpu_s[key.state] = spent_gpu_s.get(key.state, 0.0) + gpu_s
    total_gpu_s = sum(spent_gpu_s.values())
    ordered = sorted(spent_gpu_s.items(), key=lambda each: -each[1])
    return {state: gpu_s / total_gpu_s for state, gpu_s in ordered}


def _batch_words(analysis: AnalysisResult) -> str:
    """Return the mean batch of the engines and its limit, in brackets; empty if either is unknown."""
    known = analysis.answers["engine_speed"].drop_nulls(["running_mean", "max_running"])
    if known.is_empty():
        return ""
    running, limit = weighted_mean(known, "running_mean", "row_s"), max(known["max_running"].to_list())
    return f" (mean batch {fmt.significant(running)}, limit {fmt.count(limit)})"


def _remedy(analysis: AnalysisResult, shares: Mapping[str, float]) -> str:
    found = {finding.rule for finding in analysis.findings}
    by_finding = (remedy for rule, remedy in _BY_FINDING.items() if rule in found)
    by_state = (remedy for state, (ratio, remedy) in _BY_STATE.items() if shares.get(state, 0.0) >= ratio)
    return [*by_finding, *by_state, _DECODING_OF_DRAFTS if _is_speculative(analysis) else _DECODING][0]


def _is_speculative(analysis: AnalysisResult) -> bool:
    """Whether a decode pass makes several tokens per request."""
    passes = analysis.answers["pass_latency"]
    requests = passes.select(pl.col("running").cast(pl.Int64) * pl.col("passes")).sum().item()
    return bool(passes["decode_tokens"].sum() >= SPECULATIVE_RATIO * max(requests, 1))
