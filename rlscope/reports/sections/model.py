"""The sections that rest on the model: other layouts, lost throughput, and the time of forward passes."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final

import numpy as np
import polars as pl

from rlscope import format as fmt
from rlscope.analysis.result import AnalysisResult, RunFacts
from rlscope.model.decode.fit import CurveFit
from rlscope.model.forecast.result import ModelResult
from rlscope.reports.blocks import Block, Fold, Nothing, Panel, Paragraph
from rlscope.reports.charts.passes import FITTED, MEASURED, pass_curve
from rlscope.reports.figure import Figure, drawn_frame
from rlscope.reports.text import advice
from rlscope.reports.text import model as model_words
from rlscope.reports.text import panel as panel_words
from rlscope.reports.text.names import FORMS

_HEALTHY: Final = (
    "Upper bound and losses are predicted. Healthy: small losses, mostly to a limit set on purpose, such as a "
    "staleness cap."
)
_MOST_CELLS: Final = 240
_CURVE_POINTS: Final = 48
_BEYOND_NEED: Final = 1.15
"""Length of the curve relative to the largest batch shown."""


def modeled(analysis: AnalysisResult, blocks_of: Callable[[ModelResult, RunFacts], Sequence[Block]]) -> Sequence[Block]:
    """Return the blocks of a section that rests on the model, or why there is no model."""
    result = analysis.model
    if isinstance(result, ModelResult):
        return blocks_of(result, analysis.run)
    return [Nothing(model_words.no_result_sentence(result))]


def layouts_blocks(result: ModelResult, run: RunFacts) -> Sequence[Block]:
    """Return the panel of other settings, the time to finish, and assumptions."""
    return [
        Panel("try", panel_words.TITLE, partial(panel_words.panel, result, run.currency)),
        Fold("layouts-more", "Time to finish and assumptions", [*model_words.outlook_parts(result)]),
    ]


def gap_blocks(result: ModelResult, _run: RunFacts) -> Sequence[Block]:
    """Return the losses from the upper bound to the measured throughput, and the measured run beside the replayed."""
    return [
        Paragraph(" ".join(model_words.gap_sentences(result)), "lead"),
        model_words.loss_bars(result, has_meanings=True),
        Paragraph(_HEALTHY, "note"),
        model_words.replay_part(result),
    ]


def latency_blocks(result: ModelResult, run: RunFacts) -> Sequence[Block]:
    """Return the time of a forward pass by batch size: measured, fitted, and where the layouts operate."""
    fit = result.calibration.curve
    context = usual_context_tokens(fit)
    at = "" if context is None else f" at the usual context of {fmt.tokens(round(context))} per request"
    error = "" if fit.mape_ratio is None else f" Mean error of the fit: {fmt.percent(fit.mape_ratio)}."
    figure = Figure(
        "Forward pass time by batch size, measured and fitted, steady state",
        f"Dots: measured means, larger for more passes. Line: fit ({FORMS[fit.form]}){at}, with its 90% band. "
        "Diamonds: predicted operating points of the layouts, at their own context. Shaded: beyond the passes that the "
        f"run made.{error} Healthy: a narrow band around the diamonds, and the diamonds where the line bends up, not "
        "on its flat part.",
        "pass_curve", "pass_s", pass_curve, "no pass was measured or fitted", True, ("pass_latency",),
    )  # fmt: skip
    return [drawn_frame(figure, curve_frame(result), run)]


def curve_frame(model: ModelResult) -> pl.DataFrame:
    """Pass time by batch size: measured, and fitted with its interval at the usual context.

    The operating points are passes of the current and the recommended layout, at their own context.
    """
    numbers = dict.fromkeys(("running", "pass_s", "low_s", "high_s"), pl.Float64)
    columns = {"kind": pl.String, **numbers, "grade": pl.String, "measurements": pl.Float64}
    return pl.DataFrame([*_passes(model)], columns, orient="row")


def _passes(model: ModelResult) -> Iterator[tuple[str | float | None, ...]]:
    fit, layouts = model.calibration.curve, (model.forecasts.today, model.recommendation.best)
    cells, context = fit.cells, usual_context_tokens(fit) or 0.0
    most = np.argsort(-cells.rows)[:_MOST_CELLS]
    for n in most[np.argsort(cells.running[most])]:
        yield MEASURED, float(cells.running[n]), float(cells.pass_s[n]), None, None, None, float(cells.rows[n])
    largest = max([*(float(each.layout.max_running) for each in layouts), *map(float, cells.running)])
    running = np.unique(np.append(np.linspace(1.0, largest * _BEYOND_NEED, _CURVE_POINTS), 1.0))
    for requests, interval in zip(running.tolist(), fit.pass_intervals(running, running * context), strict=True):
        yield FITTED, requests, *interval, fit.grade(requests), None
    for mark, forecast in {advice.mark_of(model, each): each for each in layouts}.items():
        if forecast.state is not None:
            requests, resident = max(1.0, forecast.state.running), forecast.state.resident_tokens
            yield mark, requests, *fit.pass_interval(requests, resident), fit.grade(requests, resident), None


def usual_context_tokens(fit: CurveFit) -> float | None:
    """Resident tokens per running request, median over the measured cells; None if not recorded."""
    if not len(fit.cells) or np.isnan(fit.cells.kv_tokens).any():
        return None
    return float(np.median(fit.cells.kv_tokens / fit.cells.running))
