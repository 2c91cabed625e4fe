"""The table of the longest times without recorded work."""

from dataclasses import replace

import polars as pl

from rlscope.reports.blocks import Fold, Paragraph, Table, flat
from rlscope.reports.sections.workers import IDLE_ROWS_MAX, workers_section
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


def folded(analysis, kind):
    return [block for fold in workers_section(analysis) if isinstance(fold, Fold) for block in flat([fold])
            if isinstance(block, kind)]  # fmt: skip


def test_a_worker_has_its_length_its_start_and_the_state_that_took_most_of_it() -> None:
    (table,) = folded(analysed(stretch(0), stretch(1, 0.6, "no_requests", "backpressure"), stretch(2, 0.9999)), Table)
    assert [tuple(cell.replace("\xa0", " ") for cell in row) for row in table.rows] == [
        ("w0", "trainer", "5 s", "1 min 30 s", "waiting for samples"),
        ("w1", "trainer", "5 s", "1 min 30 s", "idle (sample queue full), 60.0% of it"),
        ("w2", "trainer", "5 s", "1 min 30 s", "waiting for samples"),
    ]


def test_of_many_workers_the_first_are_shown_and_the_rest_counted() -> None:
    many = analysed(*(stretch(number) for number in range(IDLE_ROWS_MAX + 3)))
    (table,), (_, left_out) = folded(many, Table), folded(many, Paragraph)
    assert (len(table.rows), left_out.text) == (IDLE_ROWS_MAX, "3 more in the query.")


def test_an_analysis_without_the_answer_has_no_table() -> None:
    assert folded(timeline_analysis(), Table) == []
