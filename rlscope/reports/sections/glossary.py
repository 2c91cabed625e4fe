"""The terms of the page, and the states of the ledger with their colours."""

from typing import NamedTuple

from rlscope.analysis.result import AnalysisResult
from rlscope.reports.text.states import STATES, State


class GlossarySection(NamedTuple):
    """What the section shows."""

    states: tuple[State, ...]


def glossary_section(_analysis: AnalysisResult) -> GlossarySection:
    """Make the section, the same for every run."""
    return GlossarySection(STATES)
