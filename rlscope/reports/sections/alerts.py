"""Built-in alert rules that fired, and when."""

from collections.abc import Sequence

from rlscope.analysis.result import AnalysisResult
from rlscope.reports.blocks import NO_BREAK_SPACE, Block, Nothing, Table
from rlscope.reports.text.rules import NONE_FIRED, fired_rules


def alerts_section(analysis: AnalysisResult) -> Sequence[Block]:
    """Return the blocks of the section."""
    rows = [
        (each.rule, each.severity, each.when, each.what, each.cost.replace(" ", NO_BREAK_SPACE))
        for each in fired_rules(analysis)
    ]
    columns = ("rule", "severity", "when", "value", "cost")
    return [Table("Built-in alert rules that fired", columns, rows, "stacks")] if rows else [Nothing(NONE_FIRED)]
