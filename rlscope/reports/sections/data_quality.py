"""Gaps in the recorded data."""

from typing import NamedTuple

from rlscope.analysis.result import AnalysisResult
from rlscope.reports.text import verdict as verdict_words
from rlscope.reports.text.brief import NO_GAPS


class DataQualitySection(NamedTuple):
    """Content of the section."""

    gaps: list[str]
    nothing: str
    """Set if there is no gap."""
    none: str = NO_GAPS


def data_quality_section(analysis: AnalysisResult) -> DataQualitySection:
    """Return the content of the section."""
    gaps = verdict_words.gap_lines(analysis)
    return DataQualitySection(gaps, "" if gaps else NO_GAPS)
