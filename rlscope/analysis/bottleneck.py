"""The verdict: the one cause that most of the lost GPU-seconds wait for. Wording is the report's.

Losses are taken over the steady window of the run, or from the end of its first step to the end of its last.
- samplers: trainers wait for samples.
- trainers: samplers are held back (full queue, barrier, nothing to generate), or generate what is dropped as stale.
- staleness_cap, weight_updates, environment: what either side waits for.
- balanced: neither side loses more than BALANCED_SHARE_RATIO of its GPU-seconds.
- unknown: too little data.
"""

from collections.abc import Mapping
from typing import Final, Literal

import polars as pl

from rlscope.analysis.interval import Interval
from rlscope.analysis.ledger import GENERATING, IDLE_STATES
from rlscope.analysis.result import Bottleneck, Loss, RunFacts, SteadyWindow, Verdict

# One GPU in ten: below this no change of layout pays for itself.
BALANCED_SHARE_RATIO: Final = 0.10
# With more than half of a side unexplained, whatever is explained may be the smaller part.
UNEXPLAINED_SHARE_RATIO: Final = 0.50
# One step has no step before it to wait after; two have one wait, which may be the first fill of the queue.
LEAST_STEPS_TO_JUDGE: Final = 3


_Side = Literal["trainers", "samplers"]
_SIDES: Final[Mapping[_Side, tuple[str, ...]]] = {
    "trainers": ("trainer", "colocated"),
    "samplers": ("sampler", "colocated"),
}
_HELD_BACK: Final = ("backpressure", "barrier", "requests")
_UPDATING: Final = ("publishing_weights", "transferring_weights", "applying_weights")


def judge(
    run: RunFacts, timeline: pl.DataFrame, bucket_ns: int, interval: Interval, dropped_tokens_ratio: float
) -> Verdict:
    """Choose the bottleneck from the ledger over time (role, state, reason, bucket_start_ns, gpu_s).

    bucket_ns is the length of its buckets: one that reaches over an edge of the interval counts by its share inside.
    dropped_tokens_ratio is the share of the tokens taken in the interval that were dropped as stale.
    """
    inside = interval.clip(timeline, bucket_ns)
    losses = _losses(inside, dropped_tokens_ratio)
    unknown_reason = _unknown_reason(run, inside)
    unrecorded = None if unknown_reason is not None else _unrecorded_side(inside)
    if unrecorded is not None:
        unknown_reason = _unrecorded_reason(inside, unrecorded)
    bottleneck: Bottleneck = "unknown"
    if unknown_reason is None and _is_balanced(inside, losses):
        bottleneck = "balanced"
    elif unknown_reason is None:
        unknown_reason = _uncovered_reason(inside, losses[0])
        bottleneck = losses[0].cause if unknown_reason is None else "unknown"
    return Verdict(bottleneck, losses, unknown_reason, interval.start_ns, interval.end_ns, unrecorded)


def judged_interval(window: SteadyWindow | None, steps: pl.DataFrame, run_ns: Interval) -> Interval:
    """The stable window; else from the end of the first step to the end of the last; else the whole run.

    steps is the answer of training_steps.
    """
    if window is not None:
        return Interval(window.start_ns, window.end_ns)
    if len(steps) >= LEAST_STEPS_TO_JUDGE:
        return Interval(int(steps["end_ns"][0]), int(steps["end_ns"][-1]))
    return run_ns


def dropped_ratio(outcomes: pl.DataFrame) -> float:
    """Share of the tokens that were dropped as stale or abandoned, 0..1; outcomes is the answer of judged_outcomes."""
    tokens = int(outcomes["tokens"].sum())
    dropped = outcomes.filter(pl.col("outcome").is_in(("dropped_stale", "abandoned")))
    return int(dropped["tokens"].sum()) / tokens if tokens else 0.0


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
    """Whether idle and updating states of each side, and generation that is dropped, stay within the threshold."""
    idle = pl.col("state").is_in((*IDLE_STATES, *_UPDATING))
    held_back = {loss.cause: loss for loss in losses}["trainers"]
    for side, roles in _SIDES.items():
        lost_gpu_s = _gpu_s(inside, idle & pl.col("role").is_in(roles))
        if lost_gpu_s > BALANCED_SHARE_RATIO * _side_gpu_s(inside, side):
            return False
    return held_back.side_share_ratio <= BALANCED_SHARE_RATIO


def _uncovered_reason(inside: pl.DataFrame, first: Loss) -> str | None:
    """Set when more GPU-seconds wait for something that no cause covers than for the largest cause."""
    covered = pl.col("reason").is_in(("weights", "staleness_cap", "environment")).fill_null(False)
    waiting = inside.filter((pl.col("state") == "waiting") & ~covered)
    gpu_s = float(waiting["gpu_s"].sum())
    if gpu_s < first.gpu_s:
        return None
    reasons = ", ".join(sorted({reason or "no reason given" for reason in waiting["reason"]}))
    return (
        f"{gpu_s:.3g} GPU-seconds waited for what no verdict covers ({reasons}), more than for any cause that it knows"
    )


def _unrecorded_side(inside: pl.DataFrame) -> _Side | None:
    """The side of whose GPU time the largest share above the threshold is in no recorded state."""
    shares: list[tuple[float, _Side]] = [
        (_unrecorded_gpu_s(inside, side) / gpu_s, side) for side in _SIDES if (gpu_s := _side_gpu_s(inside, side))
    ]
    most = max(shares, default=None)
    return most[1] if most is not None and most[0] > UNEXPLAINED_SHARE_RATIO else None


def _unrecorded_gpu_s(inside: pl.DataFrame, side: _Side) -> float:
    return _gpu_s(inside, (pl.col("state") == "unattributed") & pl.col("role").is_in(_SIDES[side]))


def _unrecorded_reason(inside: pl.DataFrame, side: _Side) -> str:
    gpu_s, side_gpu_s = _unrecorded_gpu_s(inside, side), _side_gpu_s(inside, side)
    share = f"{gpu_s / side_gpu_s:.0%} of the {side}' GPU time"
    return f"{share} ({gpu_s:.3g} of {side_gpu_s:.3g} GPU-seconds) is in no recorded state"


def _unknown_reason(run: RunFacts, inside: pl.DataFrame) -> str | None:
    if run.n_gpus == 0:
        return "no worker owns a GPU, so there are no GPU-seconds to judge"
    missing = [side for side in _SIDES if not _side_gpu_s(inside, side)]
    if len(missing) == 1:
        (present,) = set(_SIDES) - set(missing)
        return f"only the {present} were recorded in the stretch that is judged, and no GPU-second of the {missing[0]}"
    if run.steps < LEAST_STEPS_TO_JUDGE:
        return f"{run.steps} train steps were recorded; {LEAST_STEPS_TO_JUDGE} are the least that a verdict needs"
    if missing:
        return "no GPU-second of either side was recorded in the stretch that is judged"
    return None


def _side_gpu_s(inside: pl.DataFrame, side: _Side) -> float:
    return _gpu_s(inside, pl.col("role").is_in(_SIDES[side]))


def _gpu_s(inside: pl.DataFrame, condition: pl.Expr) -> float:
    return float(inside.filter(condition)["gpu_s"].sum())
