"""The table of the longest times without recorded work."""

from dataclasses import replace

import polars as pl

from rlscope.reports.sections.workers import IDLE_ROWS_MAX, idle_rows, workers_section
from tests.reports.timeline_fixture import timeline_analysis

COLUMNS = ("worker_id", "role", "gpu_count", "start_ns", "end_ns", "idle_s", "state", "reason", "state_ratio")


def stretch(
    number: int, ratio: float = 1.0, state: str = "waiting_for_samples", reason: str | None = "samples"
) -> dict:
    start_ns = timeline_analysis().run.started_ns + 90 * 10**9
    values = (f"w{number}", "trainer", 1, start_ns, start_ns + 5 * 10**9, 5.0, state, reason, ratio)
    return dict(zip(COLUMNS, values, strict=True))


def analysed(*stretches: dict):
    analysis = timeline_analysis()
    return replace(analysis, answers={**analysis.answers, "idle_stretches": pl.DataFrame(list(stretches))})


def test_a_worker_has_its_length_its_start_and_the_state_that_took_most_of_it() -> None:
    rows = idle_rows(analysed(stretch(0), stretch(1, 0.6, "no_requests", "backpressure"), stretch(2, 0.9999)))
    assert [tuple(row) for row in rows] == [
        ("w0", "trainer", "5 s", "1 min 30 s", "waiting for samples"),
        ("w1", "trainer", "5 s", "1 min 30 s", "no requests (queue full), 60.0% of it"),
        ("w2", "trainer", "5 s", "1 min 30 s", "waiting for samples"),
    ]


def test_of_many_workers_the_first_are_shown_and_the_rest_counted() -> None:
    section = workers_section(analysed(*(stretch(number) for number in range(IDLE_ROWS_MAX + 3))))
    assert (len(section.idle), section.idle_rows_left_out) == (IDLE_ROWS_MAX, 3)


def test_an_analysis_without_the_answer_has_no_table() -> None:
    assert idle_rows(timeline_analysis()) == []
