"""What other layouts would train, how old their tokens would be, what pays, what is left to do, and what is assumed."""

from typing import Final, NamedTuple

from rlscope.analysis import Analysis
from rlscope.model.outlook import Outlook
from rlscope.observation import ASKED_OF_A_STRETCH
from rlscope.report import levers, outlook
from rlscope.report.charts import outlook as charts
from rlscope.report.figure import Drawn, Figure, drawn_frame
from rlscope.report.outlook_frames import frontier_frame, sweep_frame


class LayoutsSection(NamedTuple):
    """What the section shows."""

    no_reason: str | None
    """Set where the model says nothing: why."""
    figures: tuple[Drawn, ...] = ()
    levers_title: str = ""
    lever_rows: tuple[levers.LeverRow, ...] = ()
    levers: str = ""
    finish: str = ""
    finish_rows: tuple[outlook.FinishRow, ...] = ()
    remarks: tuple[str, ...] = ()


def layouts_section(analysis: Analysis) -> LayoutsSection:
    """The section's words and figures."""
    said = analysis.outlook
    if not isinstance(said, Outlook):
        return LayoutsSection(outlook.silence_sentence(said))
    return LayoutsSection(
        no_reason=None,
        figures=(
            drawn_frame(_SWEEP, "figure-sweep", sweep_frame(said), analysis.run),
            drawn_frame(_FRONTIER, "figure-frontier", frontier_frame(said), analysis.run),
        ),
        levers_title=levers.TITLE,
        lever_rows=tuple(levers.lever_rows(said)),
        levers=levers.lever_sentence(said),
        finish=outlook.finish_sentence(said),
        finish_rows=tuple(outlook.finish_rows(said)),
        remarks=tuple(outlook.remarks(said)),
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
