"""Compares engine speeds at equal work, and computes how much of the difference a changed response cap explains.

Engines that compute attention for every request up to the longest running sequence get faster with a lower cap, even if
no mean length changes. If the cap is the only setting that changed, a speed change in its direction is attributed to
it, up to the ratio of the longest contexts: an upper bound of our own that takes step times as proportional to them.
The rest has another cause.
"""

import math

import numpy as np
import polars as pl

from rlscope.comparison.facts import ComparedRun, same_compute_cost
from rlscope.comparison.lengths import CapChange, law_of
from rlscope.model.lengths import LengthLaw

SPEED_RATIO = 0.05
"""Minimum relative difference of step or update times: two runs on one machine differ by less."""


def engine_speed(before: ComparedRun, after: ComparedRun) -> float | None:
    """Return the speedup of decode steps at equal batch size, as a factor.

    This is the mean over the batch sizes that both runs used, weighted by steps. Each size is compared at the other
    run's KV length, so that shorter responses do not count as speed. None if the runs share no batch size, or if the
    difference is below 5%.
    """
    if before.passes is None or after.passes is None:
        return None
    seconds = (pl.col("pass_mean_s") + pl.col("between_mean_s")) * pl.col("passes")
    sides = [
        run.passes.group_by("running").agg(seconds=seconds.sum(), passes=pl.col("passes").sum())
        for run in (before, after)
        if run.passes is not None
    ]
    both = sides[0].join(sides[1], on="running", suffix="_after").filter(
        (pl.col("passes") > 0) & (pl.col("passes_after") > 0) & (pl.col("seconds") > 0) & (pl.col("seconds_after") > 0)
    )  # fmt: skip
    if both.is_empty():
        return None
    weights = both.select(pl.min_horizontal("passes", "passes_after")).to_series().to_numpy().astype(float)
    pass_s, pass_after_s = (both[f"seconds{side}"] / both[f"passes{side}"] for side in ("", "_after"))
    # Bound the KV correction at half the step time, in case the model's slope is too steep.
    at_kv_s = (pass_s + both["running"] * _kv_s_per_request(before, after)).clip(lower_bound=0.5 * pass_s)
    ratios = (at_kv_s / pass_after_s).to_numpy()
    speed = math.exp(float((weights * [math.log(each) for each in ratios]).sum() / weights.sum()))
    return speed if abs(speed - 1.0) >= SPEED_RATIO else None


def _kv_s_per_request(before: ComparedRun, after: ComparedRun) -> float:
    """Return the seconds per running request that the other run's KV length adds to a decode step of the baseline.

    A running request holds its prompt and E[L^2] / (2 E[L]) tokens of its response, the mean age of a renewal process
    (Ross, Stochastic Processes, 1996, 3.6). 0 without models, or if the networks differ.
    """
    models = [run.model for run in (before, after) if run.model is not None]
    if len(models) < 2 or not same_compute_cost(before, after):
        return 0.0
    loads = [each.calibration.system.workload for each in models]
    held = [load.prompt_tokens + load.lengths.second_moment / (2.0 * load.lengths.mean_tokens) for load in loads]
    return (held[1] - held[0]) * models[0].calibration.system.engine.curve.kv_s_per_token


def speed_of_cap(before: ComparedRun, after: ComparedRun, cap: CapChange | None) -> float:
    """Return the largest factor on engine speed that the changed cap explains (the smallest, if below 1).

    A lower cap is applied to the baseline's own lengths; lengths under a higher cap are known from the other run only.
    1 if the cap did not change or there are no models.
    """
    law, other = law_of(before), law_of(after)
    if cap is None or law is None or before.passes is None or before.passes.is_empty() or before.model is None:
        return 1.0
    then = law.with_cap(cap.after) if cap.is_lower and cap.after is not None else other
    if then is None:
        return 1.0
    prompt = before.model.calibration.system.workload.prompt_tokens
    running = float(np.average(before.passes["running"].to_numpy(), weights=before.passes["passes"].to_numpy()))
    return (prompt + longest_age(law, running)) / (prompt + longest_age(then, running))


def longest_age(law: LengthLaw, running: float) -> float:
    """Return the mean length so far of the longest of `running` responses, in tokens.

    Each running response has the age of a renewal process, with density P(L > x) / E[L] (Ross, Stochastic Processes,
    1996, 3.6); the mean of the largest of n is the integral of 1 - F(x)^n.
    """
    ages = np.linspace(0.0, law.max_tokens, 513)
    # P(L > x), from the law's support, which already reflects the cap.
    over = np.array([float(law.probabilities[law.support > age].sum()) for age in ages])
    if law.max_output_tokens is not None:
        over = np.where(ages >= law.max_output_tokens, 0.0, over)
    steps = np.diff(ages) * (over[1:] + over[:-1]) / 2.0
    below = np.append(0.0, np.cumsum(steps)) / max(float(steps.sum()), 1e-12)
    rest = 1.0 - below ** max(1.0, running)
    return float((np.diff(ages) * (rest[1:] + rest[:-1]) / 2.0).sum())
