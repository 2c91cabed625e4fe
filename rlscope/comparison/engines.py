"""How much faster one run's engines were than another's at equal work, and how much of that a changed cap explains.

Engines that compute attention up to the longest running sequence, for all of them, get faster with a lower cap although
no mean changes. Where the cap is all that was set otherwise, a speed in that direction is the cap's, up to the ratio of
the longest contexts: as if passes took time in proportion to them (own reasoning, an upper bound). The rest has another
cause.
"""

import math

import numpy as np
import polars as pl

from rlscope.comparison.facts import ComparedRun, takes_as_long
from rlscope.comparison.lengths import CapChange, law_of
from rlscope.model.lengths import LengthLaw

SPEED_RATIO = 0.05
"""Two runs on one machine differ by less in what a pass or an update takes."""


def engine_speed(before: ComparedRun, after: ComparedRun) -> float | None:
    """How much faster decode passes of one batch size were: the mean over the sizes that both ran, by their passes.

    Each size is compared at the other run's KV, so that shorter responses make no engine faster. None without sizes in
    common, and for less than 5%.
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
    # No pass gets shorter by more than all of its KV, whatever the model makes of the slope.
    at_kv_s = (pass_s + both["running"] * _kv_s_per_request(before, after)).clip(lower_bound=0.5 * pass_s)
    ratios = (at_kv_s / pass_after_s).to_numpy()
    speed = math.exp(float((weights * [math.log(each) for each in ratios]).sum() / weights.sum()))
    return speed if abs(speed - 1.0) >= SPEED_RATIO else None


def _kv_s_per_request(before: ComparedRun, after: ComparedRun) -> float:
    """What a running request adds to a pass of the baseline's engine, in seconds, with as much KV as in the other run.

    A running request has its prompt and E[L^2] / (2 E[L]) tokens of its response, the mean age of a renewal process
    (Ross, Stochastic Processes, 1996, 3.6). 0 without models.
    """
    models = [run.model for run in (before, after) if run.model is not None]
    if len(models) < 2 or not takes_as_long(before, after):
        return 0.0
    loads = [each.calibration.system.workload for each in models]
    held = [load.prompt_tokens + load.lengths.second_moment / (2.0 * load.lengths.mean_tokens) for load in loads]
    return (held[1] - held[0]) * models[0].calibration.system.engine.curve.kv_s_per_token


def speed_of_cap(before: ComparedRun, after: ComparedRun, cap: CapChange | None) -> float:
    """Factor on the speed of the baseline's engines that the changed cap explains at most, or at least if below 1; 1
    without a cap that changed, or without models.

    A lower cap is asked of the baseline's own lengths. How long responses get under a higher one is seen in the other
    run only.
    """
    own, other = law_of(before), law_of(after)
    if cap is None or own is None or before.passes is None or before.passes.is_empty() or before.model is None:
        return 1.0
    then = own.with_cap(cap.after) if cap.is_lower and cap.after is not None else other
    if then is None:
        return 1.0
    prompt = before.model.calibration.system.workload.prompt_tokens
    running = float(np.average(before.passes["running"].to_numpy(), weights=before.passes["passes"].to_numpy()))
    return (prompt + longest_age(own, running)) / (prompt + longest_age(then, running))


def longest_age(law: LengthLaw, running: float) -> float:
    """Mean of the longest response so far among so many running ones, tokens.

    Each has the age of a renewal process, with density P(L > x) / E[L] (Ross, Stochastic Processes, 1996, 3.6); the
    mean of the largest of n is the integral of 1 - F(x)^n.
    """
    ages = np.linspace(0.0, law.max_tokens, 513)
    # P(L > x), from the law's own steps; the cap is in its lengths.
    over = np.array([float(law.probabilities[law.support > age].sum()) for age in ages])
    if law.cap_tokens is not None:
        over = np.where(ages >= law.cap_tokens, 0.0, over)
    steps = np.diff(ages) * (over[1:] + over[:-1]) / 2.0
    below = np.append(0.0, np.cumsum(steps)) / max(float(steps.sum()), 1e-12)
    rest = 1.0 - below ** max(1.0, running)
    return float((np.diff(ages) * (rest[1:] + rest[:-1]) / 2.0).sum())
