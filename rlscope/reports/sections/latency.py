"""Time of a forward pass by batch size: measured, fitted, and where the layouts operate."""

from collections.abc import Sequence
from functools import partial
from typing import Final

from rlscope import format as fmt
from rlscope.analysis.result import AnalysisResult
from rlscope.model.forecast.result import ModelResult
from rlscope.reports.blocks import Block
from rlscope.reports.charts import model as charts
from rlscope.reports.charts import sampling
from rlscope.reports.charts.model_frames import curve_frame, usual_context_tokens
from rlscope.reports.figure import Figure, drawn, drawn_frame
from rlscope.reports.sections.workers import slow_engine_of
from rlscope.reports.text.findings import PASSES_BY_ENGINE
from rlscope.reports.text.names import FORMS, GRADES


def latency_section(analysis: AnalysisResult) -> Sequence[Block]:
    """Make the section: the fitted curve if there is one, and engines beside each other where that shows something."""
    result, slow = analysis.model, slow_engine_of(analysis.findings)
    measured = drawn(_MEASURED._replace(draw=partial(sampling.pass_latency, slow_engine=slow)), analysis)
    if not isinstance(result, ModelResult):
        return [measured]
    fitted = drawn_frame(_fitted_figure(result), curve_frame(result), analysis.run)
    passes = analysis.answers.get("pass_latency")
    shows_batches = slow is not None or (passes is not None and passes["running"].n_unique() > 1)
    has_several = passes is not None and passes["worker_id"].n_unique() > 1 and shows_batches
    return [fitted, measured] if has_several else [fitted]


def _fitted_figure(result: ModelResult) -> Figure:
    fit = result.calibration.curve
    context = usual_context_tokens(fit)
    at = "" if context is None else f" at the usual context of {fmt.tokens(round(context))} per request"
    error = "" if fit.mape_ratio is None else f" Mean error of the fit: {fmt.percent(fit.mape_ratio)}."
    reading = (
        f"Dots: measured means, larger for more passes. Line: fit ({FORMS[fit.form]}){at}, with its 90% band. "
        "Diamonds: predicted operating points of the layouts, at their own context. Shaded: "
        f"{GRADES['extrapolated']}.{error} Healthy: a narrow band around the diamonds, and the diamonds where the "
        "line bends up, not on its flat part."
    )
    return _FITTED._replace(reading=reading)


_FITTED: Final = Figure(
    "Forward pass time by batch size, measured and fitted, steady state",
    "", "pass_curve", "pass_s", charts.pass_curve, "no pass was measured or fitted", True, ("pass_latency",),
)  # fmt: skip
_MEASURED: Final = Figure(
    PASSES_BY_ENGINE,
    "Flat: a larger batch costs almost no time. Rising: each additional request adds time. Healthy: all engines on the "
    "same curve.",
    "pass_latency", "pass_mean_s", sampling.pass_latency, "no engine wrote engine steps",
)  # fmt: skip
