"""The workers' timeline and the charts on its axis: their rows, their names, and what odd runs show."""

import json
from dataclasses import replace

import polars as pl
import pytest

from rlscope.analysis.shifts import RunEvent, Shift
from rlscope.reports.blocks import Legend, Nothing, Paragraph, Switch, flat
from rlscope.reports.charts.encoding import FROM
from rlscope.reports.charts.timeline import lanes_of, placed, short_name, updates_in
from rlscope.reports.figure import figures_in
from rlscope.reports.sections import sections_of
from rlscope.reports.sections.engines import engines_section
from rlscope.reports.sections.workers import workers_section
from tests.reports.analysis_fixture import STARTED_NS, empty_analysis, full_analysis
from tests.reports.model_fixture import changing_model
from tests.reports.timeline_fixture import LANES, timeline_analysis

MARKS_MAX = 5_000


def states(*rows):
    schema = ["lane", "role", "worker_id", "worker_count", "waiting_ratio", "start_s", "end_s", "label", "share_ratio"]
    return pl.DataFrame(rows, schema=schema, orient="row", schema_overrides={"worker_id": pl.String})


def placed_lanes(*rows):
    return placed(lanes_of(states(*rows)))


def documents(section):
    return [json.loads(drawn.spec) for drawn in figures_in(section) if drawn.spec]


def of_kind(kind, section):
    return [block for block in flat(section) if isinstance(block, kind)]


def rows_drawn(document):
    return [row for rows in document["datasets"].values() for row in rows]


def marks_of(document):
    return [view["mark"] for view in document["layer"]]


def test_a_lane_says_whose_it_is_from_when_to_when_and_what_it_did_most():
    lanes = lanes_of(
        states(
            (0, "trainer", "t0", 1, 0.25, 0.0, 4.0, "training", 0.75),
            (0, "trainer", "t0", 1, 0.25, 4.0, 6.0, "waiting", 1.0),
            (1, "sampler", None, 17, 0.0, 1.0, 9.0, "decoding", 0.5),
        )
    )
    assert lanes.select("worker_id", "worker_count", "from_s", "to_s", "mostly").rows() == [
        ("t0", 1, 0.0, 6.0, "training"),
        (None, 17, 1.0, 9.0, "decoding"),
    ]


def test_lanes_lie_below_one_another_with_more_room_between_roles():
    lanes = placed_lanes(
        (0, "trainer", "t0", 1, 0.25, 0.0, 4.0, "training", 1.0),
        (1, "sampler", "e0", 1, 0.0, 0.0, 4.0, "decoding", 1.0),
        (2, "sampler", None, 1_200, 0.5, 0.0, 4.0, "decoding", 1.0),
    )
    assert lanes["foot"].to_list() == [1.0, 2.45, 3.45]
    assert lanes["name"].to_list() == ["t0", "e0", "1,200 samplers"]
    assert lanes["who"].to_list() == [
        "t0 (trainer), waited 25.0% of its time",
        "e0 (sampler), waited 0% of its time",
        "1,200 samplers, waited 50.0% of their time",
    ]


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("sampler-127", "sampler-127"),
        ("trainer-rollouts", "trainer-rollouts"),
        ("trainer-rollouts-7", "trainer-…louts-7"),
        ("", ""),
    ],
)
def test_a_name_that_does_not_fit_loses_its_middle(name, short):
    assert short_name(name) == short


def test_publications_lie_over_all_lanes_and_applications_above_that_of_their_engine():
    lanes = placed_lanes(
        (0, "trainer", "t0", 1, 0.0, 0.0, 4.0, "training", 1.0),
        (1, "sampler", "e0", 1, 0.0, 0.0, 4.0, "decoding", 1.0),
    )
    marks = pl.DataFrame(
        [("publish", None, 1_500_000_000, 1, 1), ("apply", "e0", 2_000_000_000, 1, 1), ("apply", "e9", 0, 1, 1)],
        schema=["phase", "worker_id", "time_ns", "versions", "version"],
        orient="row",
    )
    rows = updates_in(marks, lanes, 500_000_000).select("phase", "time_s", "top", "foot").rows()
    assert rows[0] == ("publish", 1.0, 0.0, 2.45)
    assert rows[1][:2] == ("apply", 1.5)
    assert lanes["foot"][0] < rows[1][2] < rows[1][3] < lanes["top"][1]
    assert len(rows) == 2, "an engine that shares its lane has no ticks"


def test_marks_of_every_chart_over_time_are_cut_where_its_axis_begins():
    drawn = [document for section in sections_of(timeline_analysis()) for document in documents(section.blocks)]
    over_time = [document for document in drawn if f'"expr": "{FROM}"' in json.dumps(document)]
    assert len(over_time) >= 8
    for document in over_time:
        views = document.get("layer", [document])
        on_axis = [view for view in views if "field" in view.get("encoding", {}).get("x", {})]
        assert all(view["mark"]["clip"] for view in on_axis), document["name"]


def test_shared_lanes_say_so_and_stay_under_the_marks_of_a_chart():
    section = workers_section(timeline_analysis(1_000))
    (row,), whole_run = of_kind(Switch, section), next(figures_in(section))
    assert [view.label for view in row.views] == ["All workers", "Worst 1 min", "Worst 16 workers"]
    assert whole_run.figure.reading.startswith(f"1,024 workers in {LANES} lanes: workers of a role with similar waits")
    assert "Each 30 s interval" in whole_run.figure.reading
    assert all(len(rows_drawn(document)) <= MARKS_MAX for document in documents(section))


def test_the_key_names_every_state_that_is_drawn_and_waits_are_told_by_more_than_color():
    (key,) = of_kind(Legend, workers_section(timeline_analysis()))
    assert [state.name for state in key.states] == ["decoding", "no_requests", "applying_weights", "unattributed"]
    waiting = [state.name for state in key.states if state.kind == "wait"]
    assert waiting == ["no_requests"]


def test_a_run_without_workers_says_what_is_missing():
    assert workers_section(empty_analysis()) == [Nothing("no worker recorded anything")]


def test_one_worker_alone_has_a_lane_and_a_run_without_updates_no_rules():
    (document, *_) = documents(workers_section(timeline_analysis(1, updates=0)))
    assert [mark["type"] for mark in marks_of(document)] == ["rect", "rect", "text"], "track, states and name"


def test_the_efficient_batch_is_a_named_line_where_the_model_knows_it():
    known = engines_section(replace(full_analysis(), model=changing_model()))
    unknown = engines_section(full_analysis())
    assert "efficient batch" in (next(figures_in(known)).spec or "")
    assert "efficient batch" not in (next(figures_in(unknown)).spec or "")


@pytest.mark.parametrize(("engines", "note"), [(4, ""), (5, "5 engines: their median, a band from decile 1")])
def test_more_engines_than_lines_are_a_band_with_the_emptiest_by_name(engines, note):
    section = engines_section(full_analysis(engines))
    document, (_, *notes) = documents(section)[0], [block.text for block in of_kind(Paragraph, section)]
    assert "".join(notes).startswith(note) and bool(notes) == bool(note)
    assert ("area" in [mark["type"] for mark in marks_of(document)]) == bool(note)
    drawn = {row["worker_id"] for row in rows_drawn(document) if "worker_id" in row}
    assert len(drawn) == (4 if engines == 4 else 1 + 3)


@pytest.mark.parametrize(
    ("waiting", "is_drawn"), [([0.0, 0.0, None], False), ([0.0, 0.001, None], True), ([None, None, None], True)]
)
def test_waiting_requests_are_drawn_unless_it_is_known_that_none_waited(waiting, is_drawn):
    analysis = full_analysis()
    frame = analysis.answers["waiting_requests"].head(3).with_columns(waiting_mean=pl.Series(waiting, dtype=pl.Float64))
    section = engines_section(replace(analysis, answers={**analysis.answers, "waiting_requests": frame}))
    assert ("waiting_requests" in [drawn.figure.name for drawn in figures_in(section)]) == is_drawn


@pytest.mark.parametrize(("workers", "own"), [(5, True), (LANES + 1, False)])
def test_a_slow_engine_is_marked_in_its_lane(workers, own):
    """A lane that several engines share is nobody's own."""
    analysis = timeline_analysis(workers)
    chart = next(figures_in(workers_section(analysis)))
    lanes = [row for row in rows_drawn(json.loads(chart.spec)) if "is_slow" in row]
    assert {row["name"] for row in lanes if row["is_slow"]} == ({"sampler-3 slow"} if own else set())
    assert "show whether an engine works, not how fast. Healthy:" in chart.figure.reading
    assert ("so its lane is outlined" in chart.figure.reading) == own


def event(second):
    return RunEvent(41, STARTED_NS + second * 10**9, None, (), (Shift("reward", 0.1, 0.4),))


def test_a_lasting_change_is_a_dashed_line_across_the_lanes_of_its_stretch_ends_included():
    sections = [
        workers_section(replace(timeline_analysis(), events=tuple(map(event, seconds))))
        for seconds in ((299,), (300, 360, 361), ())
    ]
    dashed = [
        [
            [row["time_s"] for row in document["datasets"][view["data"]["name"]]]
            for document in documents(section)
            for view in document["layer"]
            if view["mark"].get("strokeDash")
        ]
        for section in sections
    ]
    assert dashed == [[[299]], [[300, 360, 361], [300, 360]], []]
    said = ["Dashed lines: lasting changes" in next(figures_in(section)).figure.reading for section in sections]
    assert said == [True, True, False]
