"""The queries behind the page: each with its SQL and where its result is used."""

from collections.abc import Mapping, Sequence

from rlscope.analysis.result import AnalysisResult
from rlscope.reports.blocks import Block, Paragraph, Query
from rlscope.trace.questions import macros_sql, questions

REST = "the verdict, the findings and the model"
"""Use of a query that no figure shows."""
_HOW_TO = (
    "Each query is one SELECT over the recorded tables. To run it yourself: `rlscope query RUN_DIR NAME`. The ledger, "
    "token staleness and the model are computed from the results in Python."
)


def queries_section(analysis: AnalysisResult, uses: Mapping[str, Sequence[str]]) -> Sequence[Block]:
    """Make the section; `uses` gives the titles of the figures and sections that use each query."""
    asked = [
        Query(name, each.question, each.sql, _used_for(uses.get(name, ())))
        for name, each in questions().items()
        if name in uses or name in analysis.answers
    ]
    return [Paragraph(_HOW_TO, "lead"), *asked, Query("macros", "Macros shared by several queries", macros_sql())]


def _used_for(titles: Sequence[str]) -> str:
    return "; ".join(dict.fromkeys(titles)) if titles else REST
