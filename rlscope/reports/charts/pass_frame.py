"""Frame of the forward passes of a model result, with few enough rows to draw and to read."""

from typing import Final

import numpy as np
import polars as pl

from rlscope.model.decode.fit import CurveFit
from rlscope.model.forecast.result import ModelResult
from rlscope.reports.text import advice

MEASURED: Final = "measured"
FITTED: Final = "fitted"
_MOST_CELLS: Final = 240
_CURVE_POINTS: Final = 48
_BEYOND_NEED: Final = 1.15
"""Length of the curve relative to the largest batch shown."""


def curve_frame(model: ModelResult) -> pl.DataFrame:
    """Pass time by batch size: measured, and fitted with its interval at the usual context.

    The operating points are passes of the current and the recommended layout, at their own context.
    """
    fit = model.calibration.curve
    numbers = dict.fromkeys(("running", "pass_s", "low_s", "high_s"), pl.Float64)
    kinds = {"kind": pl.String, **numbers, "grade": pl.String, "measurements": pl.Float64}
    return pl.DataFrame(_measured(fit) + _fitted(model, fit) + _operating(model, fit), kinds, orient="row")


def beyond_visited(frame: pl.DataFrame) -> pl.DataFrame:
    """The extrapolated stretches of a curve, in running requests."""
    curve = frame.filter(pl.col("kind") == FITTED).sort("running")
    beyond = curve["grade"].is_in(["extrapolated", "assumed"])
    numbered = curve.with_columns(beyond=beyond, stretch=beyond.rle_id(), until=pl.col("running").shift(-1))
    return (
        numbered.filter("beyond")
        .group_by("stretch", maintain_order=True)
        .agg(from_running=pl.col("running").min(), to_running=pl.col("until").fill_null(pl.col("running")).max())
        .drop("stretch")
    )


def usual_context_tokens(fit: CurveFit) -> float | None:
    """Resident tokens per running request, median over the measured cells; None if not recorded."""
    if not len(fit.cells) or np.isnan(fit.cells.kv_tokens).any():
        return None
    return float(np.median(fit.cells.kv_tokens / fit.cells.running))


def _measured(fit: CurveFit) -> list[tuple[str | float | None, ...]]:
    cells = fit.cells
    most = np.argsort(-cells.rows)[:_MOST_CELLS]
    chosen = most[np.argsort(cells.running[most])]
    return [
        (MEASURED, float(cells.running[n]), float(cells.pass_s[n]), None, None, None, float(cells.rows[n]))
        for n in chosen
    ]


def _fitted(model: ModelResult, fit: CurveFit) -> list[tuple[str | float | None, ...]]:
    context = usual_context_tokens(fit)
    asked = [float(each.layout.max_running) for each in (model.forecasts.today, model.recommendation.best)]
    most = max([*asked, *(float(value) for value in fit.cells.running)]) * _BEYOND_NEED
    running = np.unique(np.append(np.linspace(1.0, most, _CURVE_POINTS), 1.0))
    intervals = fit.pass_intervals(running, running * (context or 0.0))
    return [
        (FITTED, requests, *interval, fit.grade(requests), None)
        for requests, interval in zip(running.tolist(), intervals, strict=True)
    ]


def _operating(model: ModelResult, fit: CurveFit) -> list[tuple[str | float | None, ...]]:
    """The pass at the operating point of each of the two layouts; no row if it is unknown."""
    chosen = {advice.mark_of(model, each): each for each in (model.forecasts.today, model.recommendation.best)}
    rows: list[tuple[str | float | None, ...]] = []
    for mark, forecast in chosen.items():
        if forecast.state is None:
            continue
        running, resident = max(1.0, forecast.state.running), forecast.state.resident_tokens
        interval = fit.pass_interval(running, resident)
        grade = fit.grade(running, resident)
        rows.append((mark, running, *interval, grade, None))
    return rows
