"""Everything that the analysis could not see."""

from typing import NamedTuple

from rlscope.analysis import Analysis
from rlscope.report import wording


class DataQualitySection(NamedTuple):
    """What the section shows."""

    gaps: list[str]


def data_quality_section(analysis: Analysis) -> DataQualitySection:
    """The section's words."""
    return DataQualitySection(wording.gap_lines(analysis))
