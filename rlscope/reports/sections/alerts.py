"""Built-in alert rules that fired, and when."""

from typing import NamedTuple

from rlscope.analysis.result import AnalysisResult
from rlscope.reports.text.rules import NONE_FIRED, FiredRule, fired_rules


class AlertsSection(NamedTuple):
    """Content of the section."""

    fired: list[FiredRule]
    nothing: str
    """Set if nothing fired."""


def alerts_section(analysis: AnalysisResult) -> AlertsSection:
    """Return the content of the section."""
    fired = fired_rules(analysis)
    return AlertsSection(fired, "" if fired else NONE_FIRED)
