"""The one word: what most of the lost GPU-seconds wait for. Pure; wording is the report's.

The losses are taken over the stable window of the run, or from the end of its first step to the end of its last.
- samplers: trainers wait for samples.
- trainers: samplers are held back (queue full, a barrier, nothing to generate), or make what is dropped for its age.
- staleness_cap, weight_updates, environment: what either side waits for.
- balanced: neither side loses more than BALANCED_SHARE_RATIO of its GPU-seconds.
- unknown: too little data to say.
"""

from collections.abc import Mapping
from typing import Final

import polars as pl

from rlscope.analysis import Bottleneck, Loss, RunFacts, Verdict
from rlscope.diagnose.overproduction import GENERATING

# One GPU in ten: below this no change of layout pays for itself.
BALANCED_SHARE_RATIO: Final = 0.10
# With more than half of a side unexplained, whatever is explained may be the smaller part.
UNEXPLAINED_SHARE_RATIO: Final = 0.50
# One step has no step before it to wait after; two have one wait, which may be the first fill of the queue.
LEAST_STEPS: Final = 3

_SIDES: Final[Mapping[str, tuple[str, ...]]] = {
    "trainers": ("trainer", "colocated"),
    "samplers": ("sampler", "colocated"),
}
_HELD_BACK: Final = ("backpressure", "barrier", "requests")
_UPDATING: Final = ("publishing_weights", "transferring_weights", "applying_weights")


def judge(run: RunFacts, timeline: pl.DataFrame, steps: pl.DataFrame, dropped_tokens_ratio: float) -> Verdict:
    """Choose the bottleneck from the ledger over time (role, state, reason, bucket_start_ns, gpu_s).

    steps is the answer of training_steps; dropped_tokens_ratio the share of generated tokens dropped for their age.
    """
    start_ns, end_ns = _interval(run, steps)
    inside = timeline.filter((pl.col("bucket_start_ns") >= start_ns) & (pl.col("bucket_start_ns") < end_ns))
    losses = _losses(inside, dropped_tokens_ratio)
    unknown_reason = _unknown_reason(run, inside, len(steps))
    bottleneck: Bottleneck = "unknown"
    if unknown_reason is None:
        bottleneck = "balanced" if _is_balanced(inside, losses) else losses[0].cause
    return Verdict(bottleneck, losses, unknown_reason, start_ns, end_ns)


def _interval(run: RunFacts, steps: pl.DataFrame) -> tuple[int, int]:
    if run.window is not None:
        return run.window.start_ns, run.window.end_ns
    if len(steps) >= LEAST_STEPS:
        return int(steps["end_ns"][0]), int(steps["end_ns"][-1])
    return run.started_ns, run.started_ns + round(run.duration_s * 1e9)


def _losses(inside: pl.DataFrame, dropped_tokens_ratio: float) -> tuple[Loss, ...]:
    state, reason = pl.col("state"), pl.col("reason")
    trainer_gpu_s = _side_gpu_s(inside, "trainers")
    sampler_gpu_s = _side_gpu_s(inside, "samplers")
    both_gpu_s = float(inside["gpu_s"].sum())
    held_back_gpu_s = _gpu_s(inside, (state == "no_requests") & reason.is_in(_HELD_BACK))
    dropped_gpu_s = dropped_tokens_ratio * _gpu_s(inside, state.is_in(GENERATING) & (pl.col("role") != "trainer"))
    found: tuple[tuple[Bottleneck, float, float], ...] = (
        ("samplers", _gpu_s(inside, state == "waiting_for_samples"), trainer_gpu_s),
        ("trainers", held_back_gpu_s + dropped_gpu_s, sampler_gpu_s),
        (
            "staleness_cap",
            _gpu_s(inside, (state == "waiting_for_staleness_cap") | (reason == "staleness_cap")),
            both_gpu_s,
        ),
        (
            "weight_updates",
            _gpu_s(inside, state.is_in(_UPDATING) | ((state == "waiting") & (reason == "weights"))),
            both_gpu_s,
        ),
        ("environment", _gpu_s(inside, reason == "environment"), both_gpu_s),
    )
    losses = [Loss(cause, gpu_s, gpu_s / side_gpu_s if side_gpu_s else 0.0) for cause, gpu_s, side_gpu_s in found]
    return tuple(sorted(losses, key=lambda loss: -loss.gpu_s))


def _is_balanced(inside: pl.DataFrame, losses: tuple[Loss, ...]) -> bool:
    """Whether each side's own idle and updating states, and what it made for the bin, stay within the threshold."""
    idle = pl.col("state").is_in(
        ("waiting_for_samples", "waiting_for_staleness_cap", "waiting", "no_requests", *_UPDATING)
    )
    held_back = {loss.cause: loss for loss in losses}["trainers"]
    for side, roles in _SIDES.items():
        lost_gpu_s = _gpu_s(inside, idle & pl.col("role").is_in(roles))
        if lost_gpu_s > BALANCED_SHARE_RATIO * _side_gpu_s(inside, side):
            return False
    return held_back.side_share_ratio <= BALANCED_SHARE_RATIO


def _unknown_reason(run: RunFacts, inside: pl.DataFrame, steps: int) -> str | None:
    if run.n_gpus == 0:
        return "no worker owns a GPU, so there are no GPU-seconds to judge"
    if steps < LEAST_STEPS:
        return f"{steps} train steps were recorded; {LEAST_STEPS} are the least that a verdict needs"
    for side in _SIDES:
        side_gpu_s = _side_gpu_s(inside, side)
        if not side_gpu_s:
            return f"no GPU-second of the {side} was recorded in the stretch that is judged"
        unexplained_gpu_s = _gpu_s(inside, (pl.col("state") == "unattributed") & pl.col("role").is_in(_SIDES[side]))
        if unexplained_gpu_s > UNEXPLAINED_SHARE_RATIO * side_gpu_s:
            return f"nothing explains {unexplained_gpu_s / side_gpu_s:.0%} of the {side}' GPU-seconds"
    return None


def _side_gpu_s(inside: pl.DataFrame, side: str) -> float:
    return _gpu_s(inside, pl.col("role").is_in(_SIDES[side]))


def _gpu_s(inside: pl.DataFrame, condition: pl.Expr) -> float:
    return float(inside.filter(condition)["gpu_s"].sum())
