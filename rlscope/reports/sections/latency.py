"""Time of a forward pass by batch size: measured, fitted, and where the layouts operate."""

from collections.abc import Sequence

from rlscope import format as fmt
from rlscope.analysis.result import AnalysisResult
from rlscope.model.forecast.result import ModelResult
from rlscope.reports.blocks import Block, Nothing
from rlscope.reports.charts import passes
from rlscope.reports.charts.pass_frame import curve_frame, usual_context_tokens
from rlscope.reports.figure import Figure, drawn_frame
from rlscope.reports.text.model import no_result_sentence
from rlscope.reports.text.names import FORMS


def latency_section(analysis: AnalysisResult) -> Sequence[Block]:
    """Return the blocks of the section."""
    result = analysis.model
    if not isinstance(result, ModelResult):
        return [Nothing(no_result_sentence(result))]
    return [drawn_frame(_fitted_figure(result), curve_frame(result), analysis.run)]


def _fitted_figure(result: ModelResult) -> Figure:
    fit = result.calibration.curve
    context = usual_context_tokens(fit)
    at = "" if context is None else f" at the usual context of {fmt.tokens(round(context))} per request"
    error = "" if fit.mape_ratio is None else f" Mean error of the fit: {fmt.percent(fit.mape_ratio)}."
    return Figure(
        "Forward pass time by batch size, measured and fitted, steady state",
        f"Dots: measured means, larger for more passes. Line: fit ({FORMS[fit.form]}){at}, with its 90% band. "
        "Diamonds: predicted operating points of the layouts, at their own context. Shaded: beyond the passes that the "
        f"run made.{error} Healthy: a narrow band around the diamonds, and the diamonds where the line bends up, not "
        "on its flat part.",
        "pass_curve", "pass_s", passes.pass_curve, "no pass was measured or fitted", True, ("pass_latency",),
    )  # fmt: skip
