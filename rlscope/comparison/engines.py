"""Compares engine speeds at equal work."""

import math

import polars as pl

from rlscope.comparison.facts import ComparedRun, same_compute_cost

SPEED_RATIO = 0.05
"""Minimum relative difference of step or update times: two runs on one machine differ by less."""


def engine_speed(before: ComparedRun, after: ComparedRun) -> float | None:
    """Return the speedup of decoding at equal batch size, as a factor: a token of every request takes less time.

    This is the mean over the batch sizes that both runs used, weighted by steps of one token per request: a pass of
    speculative decoding makes several. Each size is compared at the other run's KV length, so that shorter responses do
    not count as speed. None if the runs share no batch size, or if the difference is below 5%.
    """
    seconds = (pl.col("pass_mean_s") + pl.col("between_mean_s")) * pl.col("passes")
    steps = pl.col("decode_tokens") / pl.col("running")
    sides = [
        run.answers["pass_latency"]
        .filter(pl.col("running") > 0)
        .group_by("running")
        .agg(seconds=seconds.sum(), steps=steps.sum())
        for run in (before, after)
    ]
    both = sides[0].join(sides[1], on="running", suffix="_after").filter(
        (pl.col("steps") > 0) & (pl.col("steps_after") > 0) & (pl.col("seconds") > 0) & (pl.col("seconds_after") > 0)
    )  # fmt: skip
    if both.is_empty():
        return None
    weights = both.select(pl.min_horizontal("steps", "steps_after")).to_series().to_numpy().astype(float)
    step_s, step_after_s = (both[f"seconds{side}"] / both[f"steps{side}"] for side in ("", "_after"))
    # Bound the KV correction at half the step time, in case the model's slope is too steep.
    at_kv_s = (step_s + both["running"] * _kv_s_per_request(before, after)).clip(lower_bound=0.5 * step_s)
    ratios = (at_kv_s / step_after_s).to_numpy()
    speed = math.exp(float((weights * [math.log(each) for each in ratios]).sum() / weights.sum()))
    return speed if abs(speed - 1.0) >= SPEED_RATIO else None


def _kv_s_per_request(before: ComparedRun, after: ComparedRun) -> float:
    """Return the seconds per running request that the other run's KV length adds to a decode step of the baseline.

    A running request holds its prompt and E[L^2] / (2 E[L]) tokens of its response, the mean age of a renewal process
    (Ross, Stochastic Processes, 1996, 3.6). 0 without models, or if the networks differ.
    """
    models = [run.modeled for run in (before, after) if run.modeled is not None]
    if len(models) < 2 or not same_compute_cost(before, after):
        return 0.0
    loads = [each.calibration.system.workload for each in models]
    held = [load.prompt_tokens + load.lengths.second_moment / (2.0 * load.lengths.mean_tokens) for load in loads]
    return (held[1] - held[0]) * models[0].calibration.system.engine.curve.kv_s_per_token
