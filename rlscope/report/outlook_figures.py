"""The pictures of the model, and what the page says of it: the advice, rows, and sentences, or why there are none."""

from typing import Final, NamedTuple

from rlscope.analysis import Analysis
from rlscope.model.outlook import Outlook
from rlscope.report import advice, numbers, outlook
from rlscope.report.charts import outlook as charts
from rlscope.report.figures import Drawn, Figure, drawn_frame
from rlscope.report.outlook_frames import curve_frame, frontier_frame, gap_frame, sweep_frame, usual_context_tokens
from rlscope.report.outlook_names import FORMS, GRADES


class AdvicePanel(NamedTuple):
    """The layout advice as the first screen shows it."""

    headline: str
    why: str
    rows: list[tuple[str, list[str]]]
    """A line per property, with a value for today's layout and one for the other."""
    columns: list[str]


class OutlookWords(NamedTuple):
    """Everything that the page says of the model."""

    no_reason: str | None
    """Set where the model says nothing: why."""
    panel: AdvicePanel | None = None
    baseline: str = ""
    batches: str | None = None
    prediction: str = ""
    compared: tuple[outlook.ComparedRow, ...] = ()
    gap: Drawn | None = None
    layouts: tuple[Drawn, ...] = ()
    curve: Drawn | None = None
    finish: str = ""
    finish_rows: tuple[outlook.FinishRow, ...] = ()
    remarks: tuple[str, ...] = ()


def outlook_words(analysis: Analysis) -> OutlookWords:
    """What the page shows of the outlook."""
    said = analysis.outlook
    if not isinstance(said, Outlook):
        return OutlookWords(f"The model says nothing of this run: {said.reason}.")
    run = analysis.run
    return OutlookWords(
        no_reason=None,
        panel=_panel(said),
        baseline=outlook.baseline_sentence(said),
        batches=outlook.batch_sentence(said),
        prediction=outlook.prediction_sentence(said),
        compared=tuple(outlook.compared_rows(said)),
        gap=drawn_frame(_GAP, "figure-gap", gap_frame(said), run),
        layouts=(
            drawn_frame(_SWEEP, "figure-sweep", sweep_frame(said), run),
            drawn_frame(_FRONTIER, "figure-frontier", frontier_frame(said), run),
        ),
        curve=drawn_frame(_curve_figure(said), "figure-pass-curve", curve_frame(said), run),
        finish=outlook.finish_sentence(said),
        finish_rows=tuple(outlook.finish_rows(said)),
        remarks=tuple(outlook.remarks(said)),
    )


def _panel(said: Outlook) -> AdvicePanel:
    chosen = advice.chosen_rows(said)
    changes = said.recommendation.changes
    rows = [
        ("trainer GPUs", [row.trainer_gpus for row in chosen]),
        ("sampler GPUs", [row.sampler_gpus for row in chosen]),
        ("running per engine", [row.running for row in chosen]),
        ("trained tokens/s", [row.rate.removesuffix(" tokens/s") for row in chosen]),
        *_gain_rows(said),
        ("staleness p95", [row.staleness for row in chosen]),
    ]
    return AdvicePanel(
        advice.change_words(said) if changes else advice.headline(said),
        advice.why_beside_rows(said),
        rows,
        [row.mark for row in chosen],
    )


def _gain_rows(said: Outlook) -> list[tuple[str, list[str]]]:
    """What the other layout brings and how sure that is; no rows where there is none."""
    recommendation = said.recommendation
    if recommendation.best is said.forecasts.today:
        return []
    median, low, high = map(numbers.signed_percent, recommendation.gain_ratio)
    rows = [("gain", median)] + ([("90% between", f"{low} and {high}")] if low != high else [])
    rows.append(("faster in", f"{numbers.percent(recommendation.better_probability)} of cases"))
    return [(name, ["–", value]) for name, value in rows]


_GAP: Final = Figure(
    "From the most possible to what was achieved",
    "Each bar takes off what one more limit of the run costs, so the bars add up. A healthy run loses little, and most "
    "of it to a limit that is wanted, such as a staleness cap.",
    "", "left_tokens_per_s", charts.waterfall, "nothing was trained in the steady stretch", True,
)  # fmt: skip
_SWEEP: Final = Figure(
    "What other layouts would train",
    "Points are the model's medians, bars hold 90% of what the run leaves possible; crosses are out of the question. "
    "Gains are compared case by case, so they are surer than the bars. Healthy: today's layout is at the top.",
    "", "tokens_per_s", charts.sweep, "no other layout is possible",
)  # fmt: skip
_FRONTIER: Final = Figure(
    "Throughput against staleness",
    "The line joins the layouts that are faster than every one with younger tokens. Healthy: today's layout is on it; "
    "below it, the same speed can be had with younger tokens.",
    "", "tokens_per_s", charts.frontier, "no layout has a staleness that is known",
)  # fmt: skip
_CURVE: Final = Figure(
    "Forward pass by batch size, as fitted",
    "", "", "pass_s", charts.pass_curve, "no pass was measured or fitted", True,
)  # fmt: skip


def _curve_figure(said: Outlook) -> Figure:
    fit = said.calibration.curve
    context = usual_context_tokens(fit)
    at = "" if context is None else f" at the usual {numbers.tokens(round(context))} of context a request"
    error = "" if fit.mape_ratio is None else f" It misses typical passes by {numbers.percent(fit.mape_ratio)}."
    reading = (
        f"Dots are measured means, larger ones of more passes; the line is the fit ({FORMS[fit.form]}){at}, its "
        f"band holds 90%; diamonds are where layouts settle, with the context that they would hold; shaded: "
        f"{GRADES['extrapolated']}.{error} Healthy: the band is narrow around the diamonds, and they are where the "
        "line bends up, not on its flat part."
    )
    return _CURVE._replace(reading=reading)
