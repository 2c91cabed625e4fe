"""Card, Markdown, page and JSON of one analysis say the same, in the same figures."""

import html
import re
from dataclasses import replace
from functools import cache

import pytest

from rlscope import format as fmt
from rlscope.analysis.result import LedgerState
from rlscope.document import as_dict
from rlscope.reports.card import achieved, first_screen, prediction_check
from rlscope.reports.documents.analysis import analysis_document
from rlscope.reports.markdown import markdown
from rlscope.reports.page.html import render
from rlscope.reports.text import verdict as verdict_words
from rlscope.reports.text.ledger import whole_run
from tests.reports.analysis_fixture import NO_ROWS, empty_analysis, full_analysis
from tests.reports.model_fixture import changing_model, short_model
from tests.reports.page.test_html import Page
from tests.reports.terminal_card import card_words

pytestmark = pytest.mark.usefixtures("few_what_ifs")


def told():
    """The full analysis with the one frame that words are about: charts take most of a page's time."""
    made = full_analysis()
    return replace(made, answers={**NO_ROWS, "ledger_timeline": made.answers["ledger_timeline"]})


def priced(model=None):
    made = told() if model is None else replace(told(), model=model)
    return replace(made, run=replace(made.run, gpu_hour_price=2.5, currency="EUR"))


MAKERS = {
    "priced, with a layout to change to": lambda: priced(changing_model()),
    "too short to predict": lambda: replace(told(), model=short_model()),
    "no model": told,
    "nothing known": empty_analysis,
}


@cache
def analysis_of(name):
    return MAKERS[name]()


def digest(analysis):
    return markdown(first_screen(analysis).values())


def markdown_text(text):
    return html.unescape(re.sub(r"\\([\\`*_\[\]|~#])", r"\1", text)).replace("\u200b", "")


def figures_of(text):
    """Every number in it, as it is written."""
    return set(re.findall(r"[+−<]?\d[\d,]*(?:\.\d+)?[kMGT%]?", text))


def action_rows(analysis):
    """What to do and the gain of each action, among other cells."""
    part = first_screen(analysis).get("actions")
    return part.blocks[0].rows if part else []


def said_figures(analysis):
    """What every format has to hold: spent time and money, what was lost, the layouts with the gain, the prediction."""
    facts = [achieved(analysis), *([prediction_check(analysis.modeled)] if analysis.modeled else [])]
    said = [verdict_words.headline(analysis), whole_run(analysis).label]
    said += [part for fact in facts for part in (fact.value, fact.note)]
    said += [verdict_words.why(analysis), *(gain for _, gain, *_ in action_rows(analysis)[:3])]
    return figures_of(" ".join(said))


@pytest.mark.parametrize("name", MAKERS)
def test_every_format_holds_the_same_figures_the_verdict_and_what_to_do_next_in_the_same_words(name):
    analysis = analysis_of(name)
    figures, spent = said_figures(analysis), whole_run(analysis).label
    said = (verdict_words.headline(analysis), verdict_words.next_step(analysis), spent)
    assert len(figures) >= (0 if name == "nothing known" else 8)
    formats = {
        "card": card_words(analysis, 120),
        "Markdown": markdown_text(digest(analysis)),
        "page": " ".join(Page(render(analysis)).texts),
    }
    for form, text in formats.items():
        assert figures <= figures_of(text), form
        assert all(each in " ".join(text.split()) for each in said), form


def test_the_figures_of_the_document_are_those_of_the_words():
    analysis = priced(changing_model())
    document, verdict = as_dict(analysis_document(analysis)), first_screen(analysis)["verdict"]
    assert f"whole run, {fmt.gpu_time(document['ledger']['total_gpu_s'])}," in whole_run(analysis).label
    assert verdict.headline == document["verdict"]["headline"]
    assert verdict.reasons[-1].value == document["verdict"]["next"]
    gains = [fmt.with_interval(fmt.gain, *each["gain_ratio"].values()) for each in document["actions"]]
    rows = action_rows(analysis)
    assert all(gain in cell for gain, (_, cell, *_) in zip(gains, rows, strict=True)) and rows


def test_the_price_is_said_where_the_run_states_one_and_nowhere_else():
    with_price, without = priced(), full_analysis()
    labels = [whole_run(each).label for each in (with_price, without)]
    assert labels == ["whole run, 2.1 GPU-h, 5.25 EUR", "whole run, 2.1 GPU-h"]


def test_a_bar_holds_all_of_its_role_and_names_the_largest_parts():
    for role in whole_run(full_analysis()).block.roles:
        assert sum(part.share_ratio for part in role.parts) == pytest.approx(1.0)
        assert 0 < len(role.named) <= 4 and set(role.named) <= set(role.parts)
        smallest = min(part.share_ratio for part in role.named)
        assert all(part.share_ratio <= smallest for part in role.parts if part not in role.named)


@pytest.mark.parametrize(("share_ratio", "named"), [(0.0199, 0), (0.02, 1)])
def test_a_part_is_named_from_a_fiftieth_on(share_ratio, named):
    made = full_analysis()
    small = LedgerState("trainer", "eval", None, round(share_ratio * 10**12), share_ratio, None)
    large = LedgerState("trainer", "train", None, round((1 - share_ratio) * 10**12), 1 - share_ratio, None)
    analysis = replace(made, ledger=replace(made.ledger, states=(large, small)))
    assert sum(part.label == "evaluation" for part in whole_run(analysis).block.roles[0].named) == named


def test_markdown_of_a_run_mentions_nobody_links_nowhere_and_keeps_its_tables():
    named = "@everyone | [x](http://evil.example) `a` **b**\n# c"
    made = full_analysis(run_id=named)
    text = digest(made)
    assert "@everyone" not in text and "http://evil" not in text and "\n# c" not in text
    widths = {line.count("|") - line.count(r"\|") for line in text.splitlines() if line.startswith("|")}
    assert widths == {4}
