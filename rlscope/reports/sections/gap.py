"""From the most that the GPUs could train to what was achieved, cause by cause, and predicted against achieved."""

from typing import Final, NamedTuple

from rlscope.analysis.observe import ASKED_OF_A_STRETCH
from rlscope.analysis.result import Analysis
from rlscope.model.forecast.result import ModelResult
from rlscope.reports.charts import model as charts
from rlscope.reports.charts.model_frames import gap_frame
from rlscope.reports.page.figure import Drawn, Figure, drawn_frame
from rlscope.reports.text import model as model_words
from rlscope.reports.text.names import preemption_sentence


class GapSection(NamedTuple):
    """What the section shows."""

    no_reason: str | None
    """Set where the model says nothing: why."""
    baseline: str = ""
    batches: str | None = None
    preemptions: str | None = None
    gap: Drawn | None = None
    prediction: str = ""
    compared: tuple[model_words.ComparedRow, ...] = ()


def gap_section(analysis: Analysis) -> GapSection:
    """The section's words and figures."""
    said = analysis.model
    if not isinstance(said, ModelResult):
        return GapSection(model_words.silence_sentence(said))
    return GapSection(
        no_reason=None,
        baseline=model_words.baseline_sentence(said),
        batches=model_words.batch_sentence(said),
        preemptions=preemption_sentence(said),
        gap=drawn_frame(_GAP, "figure-gap", gap_frame(said), analysis.run),
        prediction=model_words.prediction_sentence(said),
        compared=tuple(model_words.compared_rows(said)),
    )


_GAP: Final = Figure(
    "From the most possible to what was achieved",
    "Each bar takes off what one more limit of the run costs, so the bars add up. A healthy run loses little, and most "
    "of it to a limit that is wanted, such as a staleness cap.",
    "", "left_tokens_per_s", charts.waterfall, "nothing was trained in the steady stretch", True, ASKED_OF_A_STRETCH,
)  # fmt: skip
