"""What other layouts would train, how old their tokens would be, what pays, what is left to do, and what is assumed."""

from typing import Final, NamedTuple

from rlscope.analysis.observe import ASKED_OF_A_STRETCH
from rlscope.analysis.result import Analysis
from rlscope.model.forecast.result import ModelResult
from rlscope.reports.charts import model as charts
from rlscope.reports.charts.model_frames import frontier_frame, sweep_frame
from rlscope.reports.page.figure import Drawn, Figure, drawn_frame
from rlscope.reports.text import model as model_words


class LayoutsSection(NamedTuple):
    """What the section shows."""

    no_reason: str | None
    """Set where the model says nothing: why."""
    figures: tuple[Drawn, ...] = ()
    levers_title: str = ""
    lever_rows: tuple[model_words.LeverRow, ...] = ()
    levers: str = ""
    finish: str = ""
    finish_rows: tuple[model_words.FinishRow, ...] = ()
    remarks: tuple[str, ...] = ()


def layouts_section(analysis: Analysis) -> LayoutsSection:
    """The section's words and figures."""
    said = analysis.model
    if not isinstance(said, ModelResult):
        return LayoutsSection(model_words.silence_sentence(said))
    return LayoutsSection(
        no_reason=None,
        figures=(
            drawn_frame(_SWEEP, "figure-sweep", sweep_frame(said), analysis.run),
            drawn_frame(_FRONTIER, "figure-frontier", frontier_frame(said), analysis.run),
        ),
        levers_title=model_words.TITLE,
        lever_rows=tuple(model_words.lever_rows(said)),
        levers=model_words.lever_sentence(said),
        finish=model_words.finish_sentence(said),
        finish_rows=tuple(model_words.finish_rows(said)),
        remarks=tuple(model_words.remarks(said)),
    )


_SWEEP: Final = Figure(
    "What other layouts would train",
    "Points are the model's medians, bars hold 90% of what the run leaves possible; crosses are out of the question. "
    "Gains are compared case by case, so they are surer than the bars. Healthy: today's layout is at the top.",
    "", "tokens_per_s", charts.sweep, "no other layout is possible", False, ASKED_OF_A_STRETCH,
)  # fmt: skip
_FRONTIER: Final = Figure(
    "Throughput against staleness",
    "The line joins the layouts that are faster than every one with younger tokens. Healthy: today's layout is on it; "
    "below it, the same speed can be had with younger tokens.",
    "", "tokens_per_s", charts.frontier, "no layout has a staleness that is known", False, ASKED_OF_A_STRETCH,
)  # fmt: skip
