"""Panel of other settings, the time to finish, and assumptions."""

from collections.abc import Sequence
from functools import partial

from rlscope.analysis.result import AnalysisResult
from rlscope.model.forecast.result import ModelResult
from rlscope.reports.blocks import Block, Fold, Nothing, Panel
from rlscope.reports.text import model as model_words
from rlscope.reports.text import panel as panel_words


def layouts_section(analysis: AnalysisResult) -> Sequence[Block]:
    """Return the blocks of the section."""
    result = analysis.model
    if not isinstance(result, ModelResult):
        return [Nothing(model_words.no_result_sentence(result))]
    return [
        Panel("try", panel_words.TITLE, partial(panel_words.panel, result, analysis.run.currency)),
        Fold("layouts-more", "Time to finish and assumptions", [*model_words.outlook_parts(result)]),
    ]
