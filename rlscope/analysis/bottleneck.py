"""The verdict: the bottleneck of the run. The wording belongs to the reports.

If the model reproduces the run, the bottleneck is the cause that would raise throughput the most if it were fixed,
according to the model's ranking of causes and actions. Otherwise it is the cause with the most lost GPU-seconds in the
steady state, or between the end of the first step and the end of the last.
The run is balanced if no fix gains 5%, by the ranking. Without a ranking, neither side may lose more than
BALANCED_SHARE_RATIO of its GPU-seconds, nor have that much in no recorded state.
A trainer's log does not show the samplers, so its verdict is what holds the trainers up, or the trainers if nothing
does.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final, Literal

import polars as pl

from rlscope.analysis.interval import Interval
from rlscope.analysis.ledger import (
    AUXILIARY_ROLE,
    GENERATING,
    IDLE_STATES,
    SAMPLER_ROLES,
    TRAINER_ROLES,
    auxiliary_kinds,
)
from rlscope.analysis.result import Loss, SteadyWindow, Verdict
from rlscope.format import counted
from rlscope.model.causes import Bottleneck, Cause, LossCause

if TYPE_CHECKING:
    from rlscope.model.forecast.ranking import Ranking

# Two intervals of the same run can differ by more than this.
_TIE_RATIO: Final = 0.90
# One GPU in ten. Below this, no change of layout pays for itself.
BALANCED_SHARE_RATIO: Final = 0.10
# If more than half of a side is unexplained, the explained causes may be the smaller part.
UNEXPLAINED_SHARE_RATIO: Final = 0.50
# One step has no wait between steps. Two steps have one, which may be the first fill of the queue.
LEAST_STEPS_TO_JUDGE: Final = 3

# A tenth more samples would fill these GPUs.
_FULL_RATIO: Final = 0.90

DROPPED: Final = ("dropped_stale", "abandoned")
"""Outcomes of samples that were generated in vain."""
_Side = Literal["trainers", "samplers"]
_SIDES: Final[Mapping[_Side, tuple[str, ...]]] = {
    "trainers": TRAINER_ROLES,
    "samplers": SAMPLER_ROLES,
}
_HELD_BACK: Final = ("backpressure", "barrier", "requests")
_WORK: Final = ("reward", "logprobs", "train", "other")
SAVING: Final = ("checkpoint", "eval")
UPDATING: Final = ("publishing_weights", "transferring_weights", "applying_weights")


def judge(
    total_gpus: int,
    steps: int,
    inside: pl.DataFrame,
    interval: Interval,
    losses: tuple[Loss, ...],
    ranking: "Ranking | None" = None,
    refusal: str | None = None,
    *,
    hides_samplers: bool = False,
) -> Verdict:
    """Choose the bottleneck from the ledger of an interval.

    Args:
        total_gpus: GPUs of the workers that sample or train.
        steps: Recorded training steps.
        inside: The ledger over time (role, state, reason, gpu_s), clipped to the interval.
        interval: The interval of the verdict.
        losses: Result of `measure_losses`.
        ranking: The model's ranking. None or empty if the model does not explain the run.
        refusal: Reason that the data does not support a verdict. None if it does.
        hides_samplers: Whether the data is a trainer's log, which never shows what samplers do while trainers work.
    """
    waits_for_auxiliary = full_auxiliary(inside) is not None
    inside = _of_the_policy(inside)
    bottleneck: Bottleneck = Cause.BALANCED
    tied: tuple[LossCause, ...] = ()
    most_unrecorded_ratio, uncovered = UNEXPLAINED_SHARE_RATIO, None
    sides: tuple[_Side, ...] = tuple(_SIDES)
    if ranking is not None and ranking.losses:
        losses = _priced(losses, ranking)
        bottleneck, tied = ranking.cause or Cause.BALANCED, _seen(ranking.tied_with, losses, ranking)
    elif _is_balanced(inside, losses):
        # What is in no state may be a loss: neither side can be said to lose less.
        most_unrecorded_ratio = BALANCED_SHARE_RATIO
        if hides_samplers and _gpu_s(inside, pl.col("role") == "sampler"):
            # Trainers that hardly wait set the pace, whatever samplers do meanwhile.
            bottleneck, sides = Cause.TRAINERS, ("trainers",)
    else:
        bottleneck, tied, uncovered = losses[0].cause, _tied(losses), _uncovered_reason(inside, losses[0])
        # Samplers may lose more, but not because of trainers that have no samples.
        if waits_for_auxiliary or (bottleneck == Cause.TRAINERS and _starves_beside_drops(losses)):
            bottleneck, tied = Cause.SAMPLERS, ()
        sides = ("trainers",) if hides_samplers else sides
    unknown_reason, side = refusal or _unknown_reason(total_gpus, steps, inside), None
    if unknown_reason is None:
        side, unknown_reason = _unrecorded(inside, most_unrecorded_ratio, sides) or (None, uncovered)
    if unknown_reason is not None:
        bottleneck, tied, waits_for_auxiliary = Cause.UNKNOWN, (), False
    judged_ns = interval.start_ns, interval.end_ns
    return Verdict(bottleneck, losses, unknown_reason, *judged_ns, tied, side, waits_for_auxiliary)


def _priced(losses: tuple[Loss, ...], ranking: "Ranking") -> tuple[Loss, ...]:
    """Return the losses with the gain without each cause, in the order of the ranking. Unranked causes come last."""
    measured = {loss.cause: loss for loss in losses}
    ranked = [
        replace(measured.get(priced.cause, Loss(priced.cause, 0.0, 0.0)), gain_ratio=priced.gain_ratio)
        for priced in ranking.losses
    ]
    named = {loss.cause for loss in ranked}
    return (*ranked, *(loss for loss in losses if loss.cause not in named))


def _seen(causes: tuple[LossCause, ...], losses: tuple[Loss, ...], ranking: "Ranking") -> tuple[LossCause, ...]:
    """Return the causes among these ties of the model that cost GPU time or that the first action removes."""
    cost = {loss.cause for loss in losses if loss.gpu_s > 0.0}
    first = ranking.first.cause if ranking.first is not None else None
    return tuple(cause for cause in causes if cause in cost or cause == first)


def _tied(losses: tuple[Loss, ...]) -> tuple[LossCause, ...]:
    """Return the causes that lost nearly as much GPU time as the largest."""
    return tuple(loss.cause for loss in losses[1:] if loss.gpu_s >= _TIE_RATIO * losses[0].gpu_s > 0.0)


def judged_interval(window: SteadyWindow | None, steps: pl.DataFrame, run_ns: Interval) -> Interval:
    """Return the steady state, else the interval from the end of the first step to the end of the last, else the run.

    Args:
        window: The steady state, if there is one.
        steps: Answer of training_steps.
        run_ns: The whole run.
    """
    if window is not None:
        return Interval(window.start_ns, window.end_ns)
    if len(steps) >= LEAST_STEPS_TO_JUDGE:
        return Interval(int(steps["end_ns"][0]), int(steps["end_ns"][-1]))
    return run_ns


def auxiliary_busy_ratio(inside: pl.DataFrame) -> float | None:
    """Return the largest share of the interval of a ledger that a kind of auxiliary GPUs works, 0..1; None without any.

    An engine that always decodes has room for more requests, so only activities count.
    """
    return max(_auxiliary_busy_ratios(inside).values(), default=None)


def _auxiliary_busy_ratios(inside: pl.DataFrame) -> dict[str, float]:
    """Return the share of the interval that the auxiliary GPUs of each kind work, 0..1, by the name of the kind."""
    return {
        kind: _gpu_s(rows, pl.col("state").is_in(_WORK)) / gpu_s
        for kind, rows in auxiliary_kinds(inside).items()
        if (gpu_s := float(rows["gpu_s"].sum()))
    }


def full_auxiliary(inside: pl.DataFrame) -> str | None:
    """Return why a judge or reward model may limit the samples, in one clause; None if nothing shows it.

    It may if its GPUs work nearly all of the interval while trainers wait for samples. inside: as in `judge`.
    """
    trainer_gpu_s = _side_gpu_s(inside, "trainers")
    waiting_gpu_s = _side_gpu_s(inside.filter(state="waiting_for_samples"), "trainers")
    busy_ratios = _auxiliary_busy_ratios(inside)
    if not busy_ratios or not trainer_gpu_s:
        return None
    kind, waiting_ratio = max(busy_ratios, key=busy_ratios.__getitem__), waiting_gpu_s / trainer_gpu_s
    if busy_ratios[kind] < _FULL_RATIO or waiting_ratio < BALANCED_SHARE_RATIO:
        return None
    return (
        f"the auxiliary GPUs of {kind} worked {busy_ratios[kind]:.0%} of the time, and trainers waited for "
        f"samples {waiting_ratio:.0%} of theirs: more samplers gain nothing if the samples wait for the auxiliary "
        "GPUs, which the model leaves out"
    )


def dropped_ratio(outcomes: pl.DataFrame) -> float:
    """Return the share of tokens dropped as stale or abandoned, 0..1, from the answer of judged_outcomes."""
    tokens = int(outcomes["tokens"].sum())
    dropped = outcomes.filter(pl.col("outcome").is_in(DROPPED))
    return int(dropped["tokens"].sum()) / tokens if tokens else 0.0


def measure_losses(inside: pl.DataFrame, dropped_tokens_ratio: float) -> tuple[Loss, ...]:
    """Return the GPU-seconds lost to each cause in the interval of the verdict, the largest first.

    Args:
        inside: The ledger of the interval, as in `judge`.
        dropped_tokens_ratio: Share of the tokens taken in the interval that were dropped as stale, 0..1.
    """
    inside = _of_the_policy(inside)
    state, reason = pl.col("state"), pl.col("reason")
    trainer_gpu_s = _side_gpu_s(inside, "trainers")
    sampler_gpu_s = _side_gpu_s(inside, "samplers")
    both_gpu_s = float(inside["gpu_s"].sum())
    waiting_gpu_s = _gpu_s(inside, state == "waiting_for_samples")
    turns_ratio = _turns_ratio(inside, waiting_gpu_s, trainer_gpu_s, sampler_gpu_s)
    held_back_gpu_s = _gpu_s(inside, (state == "no_requests") & reason.is_in(_HELD_BACK))
    dropped_gpu_s = dropped_tokens_ratio * _gpu_s(inside, state.is_in(GENERATING) & (pl.col("role") != "trainer"))
    capped = (state == "waiting_for_staleness_cap") | (reason == "staleness_cap")
    updating = state.is_in(UPDATING) | ((state == "waiting") & (reason == "weights"))
    found: tuple[tuple[LossCause, float, float], ...] = (
        (Cause.LOCKSTEP, turns_ratio * (trainer_gpu_s + sampler_gpu_s), both_gpu_s),
        (Cause.SAMPLERS, waiting_gpu_s - turns_ratio * trainer_gpu_s, trainer_gpu_s),
        (Cause.TRAINERS, held_back_gpu_s + dropped_gpu_s - turns_ratio * sampler_gpu_s, sampler_gpu_s),
        (Cause.STALENESS_CAP, _gpu_s(inside, capped), both_gpu_s),
        (Cause.WEIGHT_UPDATES, _gpu_s(inside, updating), both_gpu_s),
        (Cause.ENVIRONMENT, _gpu_s(inside, reason == "environment"), both_gpu_s),
        (Cause.CHECKPOINTS, _gpu_s(inside, _saving()), trainer_gpu_s),
    )
    losses = [
        Loss(
            *(cause, gpu_s, gpu_s / side_gpu_s if side_gpu_s else 0.0),
            dropped_gpu_s=min(dropped_gpu_s, gpu_s) if cause == Cause.TRAINERS else None,
        )
        for cause, gpu_s, side_gpu_s in found
    ]
    return tuple(sorted(losses, key=lambda loss: -loss.gpu_s))


def _of_the_policy(inside: pl.DataFrame) -> pl.DataFrame:
    """Return the ledger without the workers that neither sample nor train."""
    return inside.filter(pl.col("role") != AUXILIARY_ROLE)


def _saving() -> pl.Expr:
    """Select trainers that save or evaluate. Samplers that evaluate do their normal work."""
    return pl.col("state").is_in(SAVING) & pl.col("role").is_in(_SIDES["trainers"])


def _turns_ratio(inside: pl.DataFrame, waiting_gpu_s: float, trainer_gpu_s: float, sampler_gpu_s: float) -> float:
    """Return the share of each side's time lost to taking turns. 0 if the sides nearly always overlap."""
    if not trainer_gpu_s or not sampler_gpu_s:
        return 0.0
    barrier_gpu_s = _gpu_s(inside, (pl.col("state") == "no_requests") & (pl.col("reason") == "barrier"))
    both_ratio = min(barrier_gpu_s / sampler_gpu_s, waiting_gpu_s / trainer_gpu_s)
    return both_ratio if both_ratio >= BALANCED_SHARE_RATIO else 0.0


def _is_balanced(inside: pl.DataFrame, losses: tuple[Loss, ...]) -> bool:
    """Return whether each side stays below the threshold.

    Counts idle and updating states, trainers that save or evaluate, and generation of dropped samples.
    """
    idle = pl.col("state").is_in((*IDLE_STATES, *UPDATING)) | _saving()
    lost = inside.filter(idle)
    held_back = next(loss for loss in losses if loss.cause == Cause.TRAINERS)
    return held_back.side_share_ratio <= BALANCED_SHARE_RATIO and all(
        _side_gpu_s(lost, side) <= BALANCED_SHARE_RATIO * _side_gpu_s(inside, side) for side in _SIDES
    )


def _starves_beside_drops(losses: tuple[Loss, ...]) -> bool:
    """Return whether trainers wait for samples, and longer than samplers wait for them: what is dropped is no wait."""
    by_cause = {loss.cause: loss for loss in losses}
    waits, held = by_cause[Cause.SAMPLERS], by_cause[Cause.TRAINERS]
    held_gpu_s = held.gpu_s - (held.dropped_gpu_s or 0.0)
    return waits.side_share_ratio > BALANCED_SHARE_RATIO and waits.gpu_s > held_gpu_s


def _uncovered_reason(inside: pl.DataFrame, first: Loss) -> str | None:
    """Return a reason if more GPU-seconds wait for things that no cause covers than for the largest cause."""
    covered = pl.col("reason").is_in(("weights", "staleness_cap", "environment")).fill_null(False)
    waiting = inside.filter((pl.col("state") == "waiting") & ~covered)
    gpu_s = float(waiting["gpu_s"].sum())
    if gpu_s < first.gpu_s:
        return None
    reasons = ", ".join(sorted({reason or "no reason given" for reason in waiting["reason"]}))
    return (
        f"{gpu_s:.3g} GPU-seconds waited for what no verdict covers ({reasons}), more than for any cause that it knows"
    )


def _unrecorded(inside: pl.DataFrame, most_ratio: float, sides: tuple[_Side, ...]) -> tuple[_Side, str] | None:
    """Return that side with the largest share of GPU time in no recorded state, and words for it, if above a share."""
    shares: list[tuple[float, _Side]] = [
        (_side_gpu_s(inside.filter(state="unattributed"), side) / gpu_s, side)
        for side in sides
        if (gpu_s := _side_gpu_s(inside, side))
    ]
    ratio, side = max(shares, default=(0.0, "trainers"))
    if ratio <= most_ratio:
        return None
    gpu_s = _side_gpu_s(inside, side)
    seconds = f"{_whole(ratio * gpu_s)} of {_whole(gpu_s)} GPU-seconds"
    return side, f"{ratio:.0%} of the {side}' GPU time ({seconds}) is in no recorded state"


def _whole(gpu_s: float) -> str:
    """Format GPU-seconds with three digits, without an exponent for large numbers."""
    return f"{gpu_s:,.0f}" if gpu_s >= 100 else f"{gpu_s:.3g}"


def _unknown_reason(total_gpus: int, steps: int, inside: pl.DataFrame) -> str | None:
    if total_gpus == 0:
        return "no sampler or trainer owns a GPU, so there are no GPU-seconds to judge"
    missing = [side for side in _SIDES if not _side_gpu_s(inside, side)]
    if len(missing) == 1:
        (present,) = set(_SIDES) - set(missing)
        return f"only the {present} were recorded in the stretch that is judged, and no GPU-second of the {missing[0]}"
    if steps < LEAST_STEPS_TO_JUDGE:
        found = counted(steps, "training step", "training steps")
        return f"the run has {found}; a verdict needs {LEAST_STEPS_TO_JUDGE}"
    if missing:
        return "no GPU-second of either side was recorded in the stretch that is judged"
    return None


def _side_gpu_s(inside: pl.DataFrame, side: _Side) -> float:
    return _gpu_s(inside, pl.col("role").is_in(_SIDES[side]))


def _gpu_s(inside: pl.DataFrame, condition: pl.Expr) -> float:
    return float(inside.filter(condition)["gpu_s"].sum())
