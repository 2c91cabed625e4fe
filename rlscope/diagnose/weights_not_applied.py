"""New weights do not reach the samplers, or not all of them: the policy that samples is not the one that is trained.

Symptom: nothing raises. The reward stays flat or rises slower than it should, and importance ratios stay away from 1.
Evidence: fresh tokens, those that the trainer's very weights sampled, on a context of their own: of the version that it
published last, in its first step since. There trainer and sampler have the same weights, so the importance ratio
w = exp(logp_trainer - logp_sampler) is 1 but for rounding, however far training has gone. Measured is the mean of
(w - 1)^2, about twice the divergence: its median over the versions after the first step's, and the same for the first
step, before which nothing was trained: the noise between the two engines.
Threshold: ten times that noise, and at least 0.001, probabilities that are off by 3 %; at least 0.01 where fewer than
1,000 tokens tell the noise, and 0.1 where fewer than 100 do. 1,000 fresh tokens in 5 later versions are the least.
Always critical: no GPU-second is worth much while the wrong policy samples.
Remedy: send every tensor, those that are tied too: with tied embeddings an engine that packs its own output head needs
`state_dict()`, since `named_parameters()` has no head. Compare log-probabilities of both sides after an update, or the
checksums of each tensor.
When it is wrong: a sampler that quantises anew at each update, or a mixture of experts whose routing drifts apart, may
grow noisier than the first step was; version labels that are off by one show as one version's change; log-probabilities
taken at another temperature or after top-p differ from the start, which the first step shows; a prefix cache that
outlives updates and is not recorded makes old context look fresh.
It is quiet when hardly any token after the first step is fresh: every sample waits in a queue for a publication or
more, or spans an update that kept the KV cache. That is so in any run whose queue is never empty. A few synchronous
steps with the same update code answer it then. The moments of `train_steps.importance` hint at it: the mean of
(w - 1)^2 falls towards 0 with the staleness when weights arrive; when they do not, it may be nearly as large at the
least staleness as at the greatest, and grow with the version. Healthy runs come too near to that for a verdict.
"""

from typing import Final

import polars as pl

from rlscope.analysis.result import Finding
from rlscope.diagnose.evidence import Evidence, column_total

# Rounding of a 16-bit engine varies several times over from batch to batch, not ten times.
NOISE_FACTOR: Final = 10.0
# A typical token's probability is off by 3 %: no harm below, and rounding alone does not grow to it from less.
LEAST_GAP: Final = 0.001
# Ten times what a 16-bit engine's noise reaches: few tokens may hold none of those that make its mean.
ROUGH_NOISE_GAP: Final = 0.01
# Ten times what 8-bit samplers and the routing of experts differ by: what nothing but other weights explains.
UNKNOWN_NOISE_GAP: Final = 0.1
# Fewer do not tell the noise, not even within a factor of ten.
LEAST_NOISE_TOKENS: Final = 100
# The square has a long tail: a hundred tokens may hold none of the large ones, or one that makes the mean.
LEAST_TOKENS: Final = 1000
# The median needs three versions that agree.
LEAST_VERSIONS: Final = 5


def find(evidence: Evidence) -> Finding | None:
    """The finding, or None when the weights arrive, or too few fresh tokens tell."""
    fresh = evidence.answers["fresh_gap"]
    first, later = fresh.filter("is_initial"), fresh.filter(~pl.col("is_initial"))
    if len(later) < LEAST_VERSIONS or column_total(later, "tokens") < LEAST_TOKENS:
        return None
    noise_gap = _noise_gap(first)
    limit_gap = _limit_gap(noise_gap, column_total(first, "tokens"))
    gap = _median(later)
    if gap < limit_gap:
        return None
    half = len(later) // 2
    return Finding(
        rule="weights_not_applied",
        severity="critical",
        cost_gpu_s=None,
        evidence={
            "gap": gap,
            "noise_gap": noise_gap,
            "limit_gap": limit_gap,
            "early_gap": _median(later.head(half)),
            "late_gap": _median(later.tail(half)),
            "fresh_tokens": int(column_total(later, "tokens")),
            "seen_versions": len(later),
        },
        start_ns=evidence.run.started_ns,
        end_ns=evidence.end_ns,
    )


def _noise_gap(first: pl.DataFrame) -> float | None:
    """What both engines differ by before anything was trained; None where too few tokens tell."""
    return float(first["gap"][0]) if column_total(first, "tokens") >= LEAST_NOISE_TOKENS else None


def _limit_gap(noise_gap: float | None, noise_tokens: float) -> float:
    if noise_gap is None:
        return UNKNOWN_NOISE_GAP
    return max(NOISE_FACTOR * noise_gap, LEAST_GAP if noise_tokens >= LEAST_TOKENS else ROUGH_NOISE_GAP)


def _median(versions: pl.DataFrame) -> float:
    return float(versions["gap"].median())  # type: ignore[arg-type]  # the median of floats is a float
