"""Phases of the mean step of a run whose trainer alone was logged, from the ledger."""

from collections.abc import Mapping

import polars as pl

from rlscope.analysis.bottleneck import LEAST_STEPS_TO_JUDGE, UPDATING
from rlscope.analysis.interval import Interval
from rlscope.analysis.ledger import GENERATING, TRAINER_ROLES
from rlscope.analysis.reported import reported_metrics, trains_on_own_samples
from rlscope.analysis.result import Staleness
from rlscope.model.step_bounds import StepPhases
from rlscope.trace.imported import Imported


def step_phases(
    answers: Mapping[str, pl.DataFrame],
    inside: pl.DataFrame,
    judged: Interval,
    staleness: Staleness,
    imported: Imported | None,
) -> StepPhases | None:
    """Return the phases of the mean step in the judged interval; None for too few steps, or without a trainer.

    Args:
        answers: Answers to the queries of an analysis.
        inside: The ledger over time, clipped to the judged interval.
        judged: The interval of the verdict.
        staleness: Staleness of the run.
        imported: Origin of an imported run.
    """
    inside = inside.filter(pl.col("role").is_in(TRAINER_ROLES))
    steps = answers["training_steps"].filter(pl.col("end_ns").is_between(*judged, closed="right")).height
    total_gpu_s = float(inside["gpu_s"].sum())
    if steps < LEAST_STEPS_TO_JUDGE or total_gpu_s <= 0.0:
        return None
    step_s = (judged.end_ns - judged.start_ns) / 1e9 / steps
    states = dict(inside.group_by("state").agg(pl.col("gpu_s").sum() * step_s / total_gpu_s).sort("state").rows())
    shares_gpus = "colocated" in inside["role"]
    generating = GENERATING if shares_gpus else ("waiting_for_samples",)
    return StepPhases(
        steps=steps,
        step_s=step_s,
        generation_s=sum(states.pop(name, 0.0) for name in generating),
        update_s=sum(states.pop(name, 0.0) for name in UPDATING),
        other_s=states,
        shares_gpus=shares_gpus,
        is_synchronous=shares_gpus or trains_on_own_samples(staleness.reported),
        mean_length_ratio=_mean_length_ratio(answers, imported),
    )


def _mean_length_ratio(answers: Mapping[str, pl.DataFrame], imported: Imported | None) -> float | None:
    """Return the mean response length over the longest of a step, over the whole run; None if either is missing."""
    mean, longest = (reported_metrics(answers, imported, kind) for kind in ("mean_length", "longest_length"))
    found = [each[0].mean for each in (mean, longest) if each]
    return found[0] / found[1] if len(found) == 2 and 0.0 < found[0] <= found[1] else None
