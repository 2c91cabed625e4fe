"""Losses from the upper bound to the measured throughput, predicted against measured, and measured against replayed."""

from typing import Final, NamedTuple

from rlscope.analysis.observe import ASKED_OF_A_STRETCH
from rlscope.analysis.result import AnalysisResult
from rlscope.model.forecast.result import ModelResult
from rlscope.reports.charts import model as charts
from rlscope.reports.charts.model_frames import gap_frame
from rlscope.reports.page.figure import Drawn, Figure, drawn_frame
from rlscope.reports.text import model as model_words
from rlscope.reports.text.names import preemption_sentence


class GapSection(NamedTuple):
    """Content of the section."""

    no_reason: str | None
    """Why there is no model result; None if there is one."""
    baseline: str = ""
    batches: str | None = None
    preemptions: str | None = None
    gap: Drawn | None = None
    prediction_title: str = model_words.PREDICTION_TITLE
    prediction: str = ""
    compared: tuple[model_words.ComparedRow, ...] = ()
    replay_title: str = model_words.REPLAY_TITLE
    replay: str = ""
    replayed: tuple[model_words.ReplayRow, ...] = ()


def gap_section(analysis: AnalysisResult) -> GapSection:
    """Return the content of the section."""
    result = analysis.model
    if not isinstance(result, ModelResult):
        return GapSection(model_words.no_result_sentence(result))
    return GapSection(
        no_reason=None,
        baseline=model_words.baseline_sentence(result),
        batches=model_words.batch_sentence(result),
        preemptions=preemption_sentence(result),
        gap=drawn_frame(_GAP, "figure-gap", gap_frame(result), analysis.run),
        prediction=model_words.prediction_sentence(result),
        compared=tuple(model_words.compared_rows(result)),
        replay=model_words.replay_sentence(result),
        replayed=tuple(model_words.replay_rows(result)),
    )


_GAP: Final = Figure(
    model_words.GAP_TITLE,
    "Each bar is the throughput lost to one more cause, so the bars add up. Upper bound and losses are predicted; the "
    "last bar is measured over the complete steps of the steady state. Healthy: small losses, mostly to a limit set "
    "on purpose, such as a staleness cap.",
    "", "left_tokens_per_s", charts.waterfall, "nothing was trained in steady state", True, ASKED_OF_A_STRETCH,
)  # fmt: skip
