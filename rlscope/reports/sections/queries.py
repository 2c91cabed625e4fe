"""The queries behind the page: each with its SQL and where its result is used."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, cast

from rlscope.analysis.result import AnalysisResult
from rlscope.reports.page.figure import Drawn
from rlscope.trace.questions import macros_sql, questions

REST = "the verdict, the findings and the model"
"""Use of a query that no figure shows."""


class AskedQuestion(NamedTuple):
    """One query."""

    anchor: str
    name: str
    question: str
    used_for: str
    sql: str


class QueriesSection(NamedTuple):
    """Content of the section."""

    questions: list[AskedQuestion]
    macros: str


def queries_section(analysis: AnalysisResult, uses: Mapping[str, Sequence[str]]) -> QueriesSection:
    """Make the section; `uses` gives the titles of the figures and sections that use each query."""
    known = questions()
    asked = [name for name in known if name in uses or name in analysis.answers]
    return QueriesSection(
        [
            AskedQuestion(f"query-{name}", name, known[name].question, _used_for(uses.get(name, ())), known[name].sql)
            for name in asked
        ],
        macros_sql(),
    )


def figures_in(words: object) -> Iterator[Drawn]:
    """Every figure of a section, at any depth."""
    if isinstance(words, Drawn):
        yield words
    elif isinstance(words, list | tuple):
        for word in cast("Sequence[object]", words):
            yield from figures_in(word)


def _used_for(titles: Sequence[str]) -> str:
    return "; ".join(dict.fromkeys(titles)) if titles else REST
