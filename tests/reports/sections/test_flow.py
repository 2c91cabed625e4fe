from dataclasses import replace

import polars as pl
import pytest

from rlscope.analysis.staleness import effective_share_of_all
from rlscope.reports.blocks import Paragraph, Table, flat
from rlscope.reports.figure import figures_in
from rlscope.reports.sections import sections_of
from rlscope.reports.sections.lengths import cap_in_sight_tokens, lengths_section, outcomes_sentence
from rlscope.reports.sections.queue import queue_section, updates_sentence, waits_sentence
from rlscope.reports.sections.staleness import heat_frame, shares_frame, staleness_section
from tests.reports.analysis_fixture import NO_ROWS, frame, full_analysis
from tests.reports.model_fixture import changing_model


def pictures(*sections):
    """Return the figures of the sections by the end of their anchors."""
    return {each.anchor.removeprefix("figure-"): each for section in sections for each in figures_in(section)}


HEAT = """
first_step last_step start_ns end_ns staleness_from staleness_to tokens share_ratio
1          2         10       20     0              1            3      0.75
1          2         10       20     2              3            1      0.25
3          3         20       25     2              3            4      1.0
"""
PARTS = """
first_step start_ns staleness_p95
1          10       2
3          20       3
"""


def test_every_cell_of_the_heat_map_knows_the_95th_percentile_of_its_column():
    made = heat_frame({"staleness_heat": frame(HEAT), "staleness_parts": frame(PARTS)})
    assert made["staleness_p95"].to_list() == [2, 2, 3]


def test_the_distribution_is_put_together_as_the_rows_of_the_heat_map_beside_it():
    histogram = frame("staleness tokens\n0 1\n1 2\n3 5")
    made = shares_frame({"staleness_histogram": histogram, "staleness_heat": frame(HEAT)})
    assert made.rows() == [(0, 1, 3, 0.375), (2, 3, 5, 0.625)]
    alone = shares_frame({**NO_ROWS, "staleness_histogram": histogram})
    assert alone["staleness_to"].to_list() == [0, 1, 3]


def test_the_distribution_goes_below_zero_with_tokens_newer_than_their_consumer():
    heat = frame(HEAT).with_columns(pl.col("staleness_from", "staleness_to") - 1)
    made = shares_frame({"staleness_histogram": frame("staleness tokens\n-1 1\n2 3"), "staleness_heat": heat})
    assert made.rows() == [(-1, 0, 1, 0.25), (1, 2, 3, 0.75)]


def test_the_effective_share_is_kishs_of_all_tokens_together():
    # Of w: 1, 1, and 0, 2, whose sums are 4 of w and 6 of its square.
    moments = frame("staleness tokens ratio_mean ratio_variance\n0 2 1.0 0.0\n1 2 1.0 1.0")
    assert effective_share_of_all(moments) == pytest.approx(4**2 / (4 * 6))
    assert effective_share_of_all(moments.clear()) is None
    assert effective_share_of_all(moments.with_columns(ratio_mean=0.0, ratio_variance=0.0)) is None


def test_a_run_without_importance_ratios_says_what_to_record_instead_of_an_empty_chart():
    analysis = full_analysis()
    unrecorded = {**analysis.answers, "version_moments": NO_ROWS["version_moments"]}
    said = staleness_section(replace(analysis, answers=unrecorded))
    assert any("Record `importance`" in block.text for block in flat(said) if isinstance(block, Paragraph))
    tables = [
        [block.rows for block in flat(blocks) if isinstance(block, Table)]
        for blocks in (said, staleness_section(analysis))
    ]
    assert tables[0] == [] and list(tables[1][0][1]) == ["1", "60,000", "98.0%", "0.02"]


def outcomes(trained, dropped, filtered):
    """Ten samples trained on, six dropped as stale, two filtered, of these mean lengths."""
    means = {"trained": (10, trained), "dropped_stale": (6, dropped), "filtered": (2, filtered)}
    rows = [(name, samples * mean, mean) for name, (samples, mean) in means.items()]
    schema = ["outcome", "tokens", "mean_output_tokens"]
    return {"delivery_outcomes": pl.DataFrame(rows, schema=schema, orient="row")}


@pytest.mark.parametrize(
    ("dropped", "said"),
    [
        (21.0, "(5% longer). Dropping biases training towards shorter responses."),
        (20.9, "Dropping does not bias lengths."),
        (19.0, "(5% shorter). Dropping biases training towards longer responses."),
        (19.1, "Dropping does not bias lengths."),
    ],
)
def test_a_bias_is_reported_from_5_percent_on(dropped, said):
    assert outcomes_sentence(outcomes(20.0, dropped, dropped)).replace(".0%", "%").endswith(said)


def test_the_share_not_trained_on_and_the_mean_lengths_of_both_sides_are_said():
    assert outcomes_sentence(outcomes(8.0, 15.0, 5.0)) == (
        "55.6% of the tokens that left the queue were not trained on. Mean length: 8 tokens trained on, 12.5 tokens "
        "not trained on (56.2% longer). Dropping biases training towards shorter responses."
    )
    only = {"delivery_outcomes": outcomes(8.0, 15.0, 5.0)["delivery_outcomes"].head(1)}
    assert outcomes_sentence(only) == "All 80 tokens that left the queue were trained on."
    rest = {"delivery_outcomes": outcomes(8.0, 15.0, 5.0)["delivery_outcomes"].tail(2)}
    assert outcomes_sentence(rest) == "100% of the tokens that left the queue were not trained on."
    assert outcomes_sentence(NO_ROWS) == ""


@pytest.mark.parametrize(("cap", "shown"), [(124, 124), (125, 125), (126, None), (None, None), ("8", None)])
def test_the_cap_is_drawn_where_it_is_in_sight_of_the_lengths(cap, shown):
    run = replace(full_analysis().run, settings={"max_output_tokens": cap})
    assert cap_in_sight_tokens(frame("length_from_tokens length_to_tokens\n0 50\n51 100"), run) == shown


def test_the_caption_of_the_lengths_says_how_many_samples_hit_the_cap():
    analysis = full_analysis()
    capped = replace(analysis, run=replace(analysis.run, settings={"max_output_tokens": 32}))
    rows = frame("length_from_tokens length_to_tokens finished_samples capped_samples censored_samples\n"
                 "1 31 3 0 1\n32 32 0 12 0")  # fmt: skip
    section = lengths_section(replace(capped, answers={**analysis.answers, "response_lengths": rows}))
    assert "The cap is 32 tokens: 75.0% of the samples hit it." in pictures(section)["response-lengths"].figure.reading
    none = lengths_section(replace(capped, answers={**analysis.answers, "response_lengths": rows.clear()}))
    assert "The cap is 32 tokens." in pictures(none)["response-lengths"].figure.reading


def test_waits_are_said_by_the_ends_of_their_bins_whatever_became_of_the_samples():
    counts = frame("wait_from_s wait_to_s trained not_trained\n0.0 1.0 4 6\n1.0 2.0 9 0\n5.0 6.0 0 1")
    assert waits_sentence(counts) == "Half of the samples waited less than 1 s, 95% less than 2 s."
    assert waits_sentence(counts.clear()) == ""


UPDATES = "engines first_version last_version to_last_s paused_mean_s paused_max_s\n"


@pytest.mark.parametrize(
    ("rows", "slowest", "pause"),
    [
        ("2 1 1 2.0 0.5 1.0\n2 2 2 7.0 1.5 2.0", "version 2, after 7 s", "Engines pause 1 s per version on average."),
        # Versions that share a line weigh as many as they are.
        (
            "2 1 3 9.0 1.0 1.0\n2 4 4 7.0 5.0 5.0",
            "one of the versions 1 to 3, which share a line, after 9 s",
            "Engines pause 2 s per version on average.",
        ),
        ("2 1 1 2.0 0.0 0.0", "version 1, after 2 s", "Engines pause 0 s per version on average."),
        ("2 1 1 2.0 null null", "version 1, after 2 s", "was not recorded"),
    ],
)
def test_updates_name_the_slowest_version_and_the_mean_pause_of_an_engine(rows, slowest, pause):
    said = updates_sentence(frame(UPDATES + rows))
    assert said.startswith(f"The slowest to reach all engines was {slowest}. ") and pause in said


def test_every_picture_says_what_is_healthy():
    sections = sections_of(replace(full_analysis(), model=changing_model()))
    drawn = [picture for picture in pictures(*(section.blocks for section in sections)).values() if picture.spec]
    assert len(drawn) == 10
    for picture in drawn:
        assert picture.rows and "ealthy" in picture.figure.reading, picture.anchor


def test_a_run_of_one_step_and_one_engine_is_drawn():
    analysis = full_analysis(engines=1)
    answers = {name: rows.tail(1) for name, rows in analysis.answers.items()}
    few = replace(analysis, answers=answers)
    found = pictures(staleness_section(few), queue_section(few))
    assert all(found[anchor].spec for anchor in ("staleness-heat", "weight-update-spread"))


def test_titles_say_of_which_part_of_the_run_a_section_is():
    titles = {section.anchor: section.title for section in sections_of(full_analysis())}
    assert titles["staleness"] == "Staleness, whole run"
    assert titles["gap"] == "Upper bound and measured throughput, steady state"
