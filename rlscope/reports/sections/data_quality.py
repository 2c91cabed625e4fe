"""Gaps in the recorded data."""

from collections.abc import Sequence

from rlscope.analysis.result import AnalysisResult
from rlscope.reports.blocks import Block, Bullets, Nothing
from rlscope.reports.text import verdict as verdict_words
from rlscope.reports.text.brief import NO_GAPS


def data_quality_section(analysis: AnalysisResult) -> Sequence[Block]:
    """Return the blocks of the section."""
    gaps = verdict_words.gap_lines(analysis)
    return [Bullets(gaps)] if gaps else [Nothing(NO_GAPS)]
