"""Frames of a model result for its charts, with few enough rows to draw and to read."""

from typing import Final

import numpy as np
import polars as pl

from rlscope.model.decode.fit import CurveFit
from rlscope.model.forecast.layouts import Forecast
from rlscope.model.forecast.result import ModelResult
from rlscope.reports.text import advice
from rlscope.reports.text.causes import NAMES
from rlscope.reports.text.names import layout_remark

FRONTIER: Final = "frontier"
SLOWER: Final = "slower or staler"
SYNCHRONOUS: Final = "this run, synchronous"
MEASURED: Final = "measured"
FITTED: Final = "fitted"
_MOST_ROWS: Final = 240
_MOST_CELLS: Final = 240
_CURVE_POINTS: Final = 48
_BEYOND_NEED: Final = 1.15
"""Length of the curve relative to the largest batch shown."""
_LAYOUT_SCHEMA: Final = {
    "which": pl.String,
    "trainer_gpus": pl.Int64,
    "sampler_gpus": pl.Int64,
    "max_running": pl.Int64,
    "tokens_per_s": pl.Float64,
    "gain": pl.String,
    "sample_staleness_p95": pl.Int64,
    "waits_for": pl.String,
    "remark": pl.String,
    "series": pl.String,
}


def frontier_frame(model: ModelResult) -> pl.DataFrame:
    """Return the throughput and staleness of every layout that can run and has a known staleness.

    A layout is on the frontier if it is faster than all less stale ones. A layout whose queue grows without bound has
    no staleness.
    """
    known = [each for each in _usable(model) if each.staleness is not None and each.tokens_per_s is not None]
    frontier, fastest = list[Forecast](), 0.0
    for each in sorted(known, key=lambda each: _by_age(model, each)):
        rate = _rate(model, each)
        if rate > fastest:
            frontier, fastest = [*frontier, each], rate
    rows = [_row(model, each, FRONTIER if each in frontier else SLOWER) for each in known]
    frame = pl.DataFrame(rows, schema=_LAYOUT_SCHEMA, orient="row")
    return _thinned(frame).sort("sample_staleness_p95", "tokens_per_s")


def curve_frame(model: ModelResult) -> pl.DataFrame:
    """Pass time by batch size: measured, and fitted with its interval at the usual context.

    The operating points are passes of the current and the recommended layout, at their own context.
    """
    fit = model.calibration.curve
    rows = _measured(fit) + _fitted(model, fit) + _operating(model, fit)
    kinds = {
        "kind": pl.String,
        "running": pl.Float64,
        "pass_s": pl.Float64,
        "low_s": pl.Float64,
        "high_s": pl.Float64,
        "grade": pl.String,
        "measurements": pl.Float64,
    }
    return pl.DataFrame(rows, schema=kinds, orient="row")


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


def _row(model: ModelResult, forecast: Forecast, series: str) -> tuple[str | int | float | None, ...]:
    layout, gain = forecast.layout, advice.gain_of(model, forecast)
    rate = advice.rate_of(forecast, model.forecasts.today)
    return (
        advice.mark_of(model, forecast),
        layout.trainer_gpus,
        layout.sampler_gpus,
        layout.max_running,
        None if rate is None else rate.value,
        advice.gain_text(gain),
        None if forecast.staleness is None else forecast.staleness.sample_p95,
        None if forecast.state is None else NAMES[forecast.state.regime],
        layout_remark(forecast),
        # A synchronous run is not on the line of the layouts, which are predicted for asynchronous runs.
        SYNCHRONOUS if model.calibration.synchronous and forecast is model.forecasts.today else series,
    )


def _usable(model: ModelResult) -> list[Forecast]:
    """Return the current layout and those that can run."""
    today = model.forecasts.today
    return [each for each in model.forecasts.shown if each.excluded is None or each is today]


def _thinned(frame: pl.DataFrame) -> pl.DataFrame:
    """At most about `_MOST_ROWS`: marked layouts and the frontier stay, the rest is subsampled."""
    if frame.height <= _MOST_ROWS:
        return frame
    kept = (pl.col("which") != "") | (pl.col("series") == FRONTIER)
    frame = frame.sort("trainer_gpus", "max_running").with_row_index("row")
    return frame.filter(kept | (pl.col("row") % (-(-frame.height // _MOST_ROWS)) == 0)).drop("row")


def _rate(model: ModelResult, forecast: Forecast) -> float:
    """The rate as shown, so that the layout drawn as fastest is the fastest shown."""
    rate = advice.rate_of(forecast, model.forecasts.today)
    return 0.0 if rate is None else rate.value


def _by_age(model: ModelResult, forecast: Forecast) -> tuple[int, float]:
    return (forecast.staleness.sample_p95 if forecast.staleness else 0, -_rate(model, forecast))


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
