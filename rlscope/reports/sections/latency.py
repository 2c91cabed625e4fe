"""What a forward pass costs by its batch: measured, fitted, and where the run works."""

from typing import Final, NamedTuple

from rlscope import format as fmt
from rlscope.analysis.result import Analysis
from rlscope.model.forecast.result import ModelResult
from rlscope.reports.charts import model as charts
from rlscope.reports.charts import sampling
from rlscope.reports.charts.model_frames import curve_frame, usual_context_tokens
from rlscope.reports.page.figure import Drawn, Figure, drawn, drawn_frame
from rlscope.reports.text.names import FORMS, GRADES


class LatencySection(NamedTuple):
    """What the section shows."""

    figures: list[Drawn]


def latency_section(analysis: Analysis) -> LatencySection:
    """The section's figures: the fit where the model has one, and what every engine measured where they can differ."""
    said = analysis.model
    measured = drawn(_MEASURED, analysis)
    if not isinstance(said, ModelResult):
        return LatencySection([measured])
    fitted = drawn_frame(_fitted_figure(said), "figure-pass-curve", curve_frame(said), analysis.run)
    passes = analysis.answers.get("pass_latency")
    has_several = passes is not None and passes["worker_id"].n_unique() > 1
    return LatencySection([fitted, measured] if has_several else [fitted])


def _fitted_figure(said: ModelResult) -> Figure:
    fit = said.calibration.curve
    context = usual_context_tokens(fit)
    at = "" if context is None else f" at the usual {fmt.tokens(round(context))} of context a request"
    error = "" if fit.mape_ratio is None else f" It misses typical passes by {fmt.percent(fit.mape_ratio)}."
    reading = (
        f"Dots are measured means, larger ones of more passes; the line is the fit ({FORMS[fit.form]}){at}, its "
        f"band holds 90%; diamonds are where layouts settle, with the context that they would hold; shaded: "
        f"{GRADES['extrapolated']}.{error} Healthy: the band is narrow around the diamonds, and they are where the "
        "line bends up, not on its flat part."
    )
    return _FITTED._replace(reading=reading)


_FITTED: Final = Figure(
    "Forward pass by batch size, as fitted",
    "", "", "pass_s", charts.pass_curve, "no pass was measured or fitted", True, ("pass_latency",),
)  # fmt: skip
_MEASURED: Final = Figure(
    "Time of a forward pass by batch size",
    "While this is flat, a larger batch costs nearly nothing; where it climbs in a straight line, it is paid for. "
    "Healthy: engines lie on one another.",
    "pass_latency", "pass_mean_s", sampling.pass_latency, "no engine wrote engine steps",
)  # fmt: skip
