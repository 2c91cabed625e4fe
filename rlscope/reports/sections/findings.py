"""The findings, each with evidence, cost and remedy."""

from collections.abc import Sequence
from typing import Final

from rlscope.analysis.result import AnalysisResult
from rlscope.reports.blocks import Block, Fold, Paragraph
from rlscope.reports.text.findings import callouts
from rlscope.reports.text.verdict import actions_of, no_findings

_OPEN: Final = 3


def findings_section(analysis: AnalysisResult) -> Sequence[Block]:
    """Return the blocks of the section: the most expensive findings open, the rest in a fold."""
    found = callouts(analysis, actions_of(analysis))
    if not found:
        return [Paragraph(no_findings(analysis), "empty")]
    more = found[_OPEN:]
    return [*found[:_OPEN], *([Fold("findings-more", f"{len(more)} more", more)] if more else [])]
