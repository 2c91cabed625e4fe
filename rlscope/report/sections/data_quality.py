"""Everything that the analysis could not see."""

from typing import NamedTuple

from rlscope.analysis import Analysis
from rlscope.report import wording
from rlscope.report.brief import NO_GAPS


class DataQualitySection(NamedTuple):
    """What the section shows."""

    gaps: list[str]
    none: str = NO_GAPS


def data_quality_section(analysis: Analysis) -> DataQualitySection:
    """The section's words."""
    return DataQualitySection(wording.gap_lines(analysis))
