"""docs/questions.md names only what there is: queries, findings, alert rules, metrics and sections."""

import re
from pathlib import Path

from rlscope.alerts.config import built_in_rules
from rlscope.alerts.metrics import BY_NAME
from rlscope.diagnose import RULES
from rlscope.reports.sections import sections_of
from rlscope.reports.text.actions import TITLE as ACTIONS
from rlscope.trace.questions import questions
from tests.reports.analysis_fixture import empty_analysis

DOCS = Path(__file__).parents[2] / "docs"
TEXT = (DOCS / "questions.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| (\d+) \| (.*) \| (.*) \|$", TEXT, re.MULTILINE)


def test_each_of_the_24_questions_has_a_link_and_an_answer() -> None:
    assert [int(number) for number, _, _ in ROWS] == list(range(1, 25))
    for _, asked, answer in ROWS:
        assert "https://github.com/" in asked and "`" in answer


def test_every_query_finding_rule_metric_and_section_that_is_named_exists() -> None:
    rules = {rule.name for rule in (*RULES, *built_in_rules().rules)}
    columns = {column.name for question in questions().values() for column in question.outputs}
    others = {"lockstep", "unattributed", "sample_traces"}
    assert {*re.findall(r"`([a-z]+(?:_[a-z]+)*)`", TEXT)} <= questions().keys() | rules | columns | others
    assert {*re.findall(r"'([a-z_]+\.[a-z_]+) >", TEXT)} <= BY_NAME.keys()
    titles = {each.partition(",")[0] for each in (ACTIONS, *(each.title for each in sections_of(empty_analysis())))}
    for title in re.findall(r"\*([A-Z][^*]+)\*(?!\*)", TEXT):
        assert any(title.startswith(known) for known in titles), title
