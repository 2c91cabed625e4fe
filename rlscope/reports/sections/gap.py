"""Losses from the upper bound to the measured throughput, predicted against measured, and measured against replayed."""

from collections.abc import Iterator, Sequence
from typing import Final

from rlscope.analysis.observe import ASKED_OF_A_STRETCH
from rlscope.analysis.result import AnalysisResult
from rlscope.model.forecast.result import ModelResult
from rlscope.reports.blocks import Block, Heading, Nothing, Paragraph, Table
from rlscope.reports.charts import model as charts
from rlscope.reports.charts.model_frames import gap_frame
from rlscope.reports.figure import Figure, drawn_frame
from rlscope.reports.text import model as model_words
from rlscope.reports.text.names import preemption_sentence


def gap_section(analysis: AnalysisResult) -> Sequence[Block]:
    """Return the blocks of the section."""
    result = analysis.model
    if not isinstance(result, ModelResult):
        return [Nothing(model_words.no_result_sentence(result))]
    told = (
        model_words.baseline_sentence(result),
        model_words.batch_sentence(result),
        preemption_sentence(result),
    )
    gap = drawn_frame(_GAP, "figure-gap", gap_frame(result), analysis.run)
    return [Paragraph(" ".join(filter(None, told)), "lead"), gap, *_predicted(result), *_replayed(result)]


def _predicted(result: ModelResult) -> Iterator[Block]:
    title, rows = model_words.PREDICTION_TITLE, model_words.compared_rows(result)
    yield Heading(title)
    if rows:
        yield Table(title, ("", "predicted", "measured", "measured vs predicted"), rows, "compared")
    ranges = " Ranges in brackets are 90% intervals. “As predicted” means that they overlap." if rows else ""
    yield Paragraph(model_words.prediction_sentence(result) + ranges, "note")


def _replayed(result: ModelResult) -> Iterator[Block]:
    title, columns = model_words.REPLAY_TITLE, ("", "measured", "replayed", "replayed vs measured")
    yield Heading(title)
    yield Table(title, columns, model_words.replay_rows(result), "compared")
    scope = "Measured over the steady state; times are shares of all GPUs of that side."
    yield Paragraph(f"{model_words.replay_sentence(result)} {scope}", "note")


_GAP: Final = Figure(
    model_words.GAP_TITLE,
    "Each bar is the throughput lost to one more cause, so the bars add up. Upper bound and losses are predicted; the "
    "last bar is measured over the complete steps of the steady state. Healthy: small losses, mostly to a limit set "
    "on purpose, such as a staleness cap.",
    "", "left_tokens_per_s", charts.waterfall, "nothing was trained in steady state", True, ASKED_OF_A_STRETCH,
)  # fmt: skip
