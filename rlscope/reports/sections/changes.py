"""Lasting changes during the run: a line for each."""

from collections.abc import Sequence

from rlscope.analysis.result import AnalysisResult
from rlscope.reports.blocks import Block, Nothing
from rlscope.reports.text.shifts import events_block


def changes_section(analysis: AnalysisResult) -> Sequence[Block]:
    """Return the blocks of the section."""
    if not analysis.events:
        return [Nothing("no lasting change of step time, throughput, lengths, staleness or reward")]
    return [events_block(analysis.events, analysis.run.started_ns)]
