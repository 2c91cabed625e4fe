"""Losses from the upper bound to the measured throughput, predicted against measured, and measured against replayed."""

from collections.abc import Sequence
from typing import Final

from rlscope.analysis.result import AnalysisResult
from rlscope.model.forecast.result import ModelResult
from rlscope.reports.blocks import Block, Nothing, Paragraph
from rlscope.reports.charts import model as charts
from rlscope.reports.charts.model_frames import gap_frame
from rlscope.reports.figure import Figure, drawn_frame
from rlscope.reports.text import model as model_words


def gap_section(analysis: AnalysisResult) -> Sequence[Block]:
    """Return the blocks of the section."""
    result = analysis.model
    if not isinstance(result, ModelResult):
        return [Nothing(model_words.no_result_sentence(result))]
    gap = drawn_frame(_GAP, gap_frame(result), analysis.run)
    lead = Paragraph(" ".join(model_words.gap_sentences(result)), "lead")
    return [lead, gap, model_words.prediction_part(result), model_words.replay_part(result)]


_GAP: Final = Figure(
    model_words.GAP_TITLE,
    "Each bar is the throughput lost to one more cause, so the bars add up. Upper bound and losses are predicted; the "
    "last bar is measured over the complete steps of the steady state. Healthy: small losses, mostly to a limit set "
    "on purpose, such as a staleness cap.",
    "gap", "left_tokens_per_s", charts.waterfall, "nothing was trained in steady state", True,
)  # fmt: skip
