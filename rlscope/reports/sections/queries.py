"""How every number was computed: each question of the page once, with its SQL and what stands on its answer."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, cast

from rlscope.analysis.result import Analysis
from rlscope.reports.page.figure import Drawn
from rlscope.trace.questions import macros_sql, questions

REST = "the verdict, the findings and the model"
"""What asks a question that no figure draws."""


class AskedQuestion(NamedTuple):
    """One question."""

    anchor: str
    name: str
    question: str
    used_for: str
    sql: str


class QueriesSection(NamedTuple):
    """What the section shows."""

    questions: list[AskedQuestion]
    macros: str


def queries_section(analysis: Analysis, uses: Mapping[str, Sequence[str]]) -> QueriesSection:
    """The section's words; `uses` names, for each question, what stands on it."""
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
    """Every figure among a section's words, however deep."""
    if isinstance(words, Drawn):
        yield words
    elif isinstance(words, list | tuple):
        for word in cast("Sequence[object]", words):
            yield from figures_in(word)


def _used_for(titles: Sequence[str]) -> str:
    return "; ".join(dict.fromkeys(titles)) if titles else REST
