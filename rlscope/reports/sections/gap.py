"""Losses from the upper bound to the measured throughput, and the measured run beside the replayed one."""

from collections.abc import Sequence
from typing import Final

from rlscope.analysis.result import AnalysisResult
from rlscope.model.forecast.result import ModelResult
from rlscope.reports.blocks import Block, Nothing, Paragraph
from rlscope.reports.card import loss_bars
from rlscope.reports.text import model as model_words

_HEALTHY: Final = (
    "Upper bound and losses are predicted. Healthy: small losses, mostly to a limit set on purpose, such as a "
    "staleness cap."
)


def gap_section(analysis: AnalysisResult) -> Sequence[Block]:
    """Return the blocks of the section."""
    result = analysis.model
    if not isinstance(result, ModelResult):
        return [Nothing(model_words.no_result_sentence(result))]
    return [
        Paragraph(" ".join(model_words.gap_sentences(result)), "lead"),
        loss_bars(result, has_meanings=True),
        Paragraph(_HEALTHY, "note"),
        model_words.replay_part(result),
    ]
