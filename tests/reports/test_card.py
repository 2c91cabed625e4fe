from dataclasses import replace

import polars as pl
import pytest
from rich.cells import cell_len

from rlscope.reports.text import findings
from rlscope.trace.completeness import NOT_KNOWN
from tests.reports.analysis_fixture import empty_analysis, full_analysis, hostile_analysis, without_frames
from tests.reports.model_fixture import changing_model
from tests.reports.terminal_card import card, card_words


def modeled():
    return replace(full_analysis(), model=changing_model())


@pytest.mark.parametrize("width", [60, 80, 100, 120, 200])
@pytest.mark.parametrize("make", [full_analysis, empty_analysis, hostile_analysis, without_frames, modeled])
def test_no_line_is_longer_than_the_terminal(make, width):
    assert max(cell_len(line) for line in card(make(), width).splitlines()) <= min(width, 120)


@pytest.mark.parametrize("width", [60, 120])
def test_nothing_that_matters_is_cut(width):
    analysis = modeled()
    text = card_words(analysis, width)
    assert "…" not in text
    assert "Trainers wait for samples 46.0% of the time" in text
    for finding in analysis.findings:
        assert findings.title(finding) in text
        assert findings.sentence(finding) in text
        assert findings.remedy(finding, changing_model().ranking.actions) in text


@pytest.mark.parametrize(("filtered", "is_stated"), [(100, True), (99, False)])
def test_the_share_of_filtered_tokens_is_stated_from_a_tenth_on(filtered, is_stated):
    full, rest = full_analysis(), {"trained": 800, "dropped_stale": 200 - filtered}
    tokens = {**rest, "filtered": filtered}
    outcomes = pl.DataFrame({"outcome": list(tokens), "tokens": list(tokens.values())})
    text = card_words(replace(full, answers={**full.answers, "judged_outcomes": outcomes}), 120)
    said = "Tokens filtered 10.0% · 1.25 tokens sampled for each one trained on, in steady state"
    assert (said in text) is is_stated


def test_the_verdict_comes_first_and_the_gaps_before_the_numbers():
    text = card(full_analysis())
    places = [text.index(part) for part in ("Bottleneck: samplers", "The data has gaps", "Where the GPU time went")]
    assert places == sorted(places)


def test_a_run_claims_to_be_complete_only_where_its_workers_state_their_counts():
    known = empty_analysis()
    unstated = replace(known, data_quality=replace(known.data_quality, completeness=NOT_KNOWN))
    complete, unknown = card_words(known), card_words(unstated)
    assert "The recording is complete" in complete and "The data has gaps" not in complete
    assert "The recording is complete" not in unknown and "Files may still be missing" in unknown
