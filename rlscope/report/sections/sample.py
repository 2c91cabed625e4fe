"""Three samples from their first token to their step: the longest, the stalest, and one in the middle."""

from typing import Final, NamedTuple

from rlscope.analysis import Analysis
from rlscope.report.charts import strips
from rlscope.report.figure import Drawn, Figure, drawn_frame
from rlscope.report.sample_lives import SampleLife, sample_lives, stations_frame


class SampleSection(NamedTuple):
    """What the section shows."""

    none: str
    """Set where there is no sample: why."""
    strips: list[Drawn]
    lives: Drawn | None


def sample_section(analysis: Analysis) -> SampleSection:
    """The section's words and figures."""
    frame, run = analysis.answers.get("sample_strips"), analysis.run
    chosen = sample_lives(frame, run.started_ns)
    if not chosen:
        return SampleSection("No sample with a token was recorded: there is nothing to follow.", [], None)
    return SampleSection(
        "",
        [drawn_frame(_strip(life), f"figure-strip-{n}", life.runs, run) for n, life in enumerate(chosen)],
        drawn_frame(_LIVES, "figure-lives", stations_frame(frame), run),
    )


def _strip(life: SampleLife) -> Figure:
    return _STRIP._replace(title=life.title, reading=life.sentence)


_STRIP: Final = Figure("", "", "", "token_to", strips.strip, "it has no token", True, ("sample_strips",))
_LIVES: Final = Figure(
    "What they did when",
    "From the start of each sample to the step that trained on it. Healthy: most of the time goes into generating, "
    "little into the queue.",
    "", "to_s", strips.lives, "no start of a chosen sample was recorded", True, ("sample_strips",),
)  # fmt: skip
