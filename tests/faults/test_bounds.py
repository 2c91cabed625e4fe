"""What would take hours or gigabytes is bounded: it ends, exactly or with a clear error."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from rlscope.errors import LimitError
from rlscope.trace import query
from rlscope.trace.query import ask, standard_arguments
from rlscope.trace.store import open_run
from tests.trace_folder import engine_row, worker, write_run

Spans = Sequence[tuple[int, int]]
NESTED: Spans = [(start, 40 - start) for start in range(20)]
STAIRS: Spans = [(start, min(40, start + 7)) for start in range(38)]
ONE_OVER_ALL: Spans = [(0, 40), *((start, start + 2) for start in range(1, 39, 3))]


def write_engine(folder: Path, spans: Spans) -> Path:
    rows = [engine_row("e0", start, end, busy_ns=end - start) for start, end in spans]
    return write_run(folder, [worker("e0", "sampler", 0, 40)], engine_steps=rows)


@pytest.mark.parametrize("spans", [NESTED, STAIRS, ONE_OVER_ALL], ids=["nested", "stairs", "one over all"])
def test_each_nanosecond_of_rows_that_overlap_belongs_to_the_one_that_started_last(
    spans: Spans, tmp_path: Path
) -> None:
    with open_run(write_engine(tmp_path, spans)) as run:
        sql = "SELECT began_ns, start_ns, end_ns FROM innermost_pieces(0, 1000, true, 'workers') WHERE is_engine"
        pieces = run.connection.sql(sql).fetchall()
    owners = {instant: began for began, start, end in pieces for instant in range(start, end)}
    assert sum(end - start for _, start, end in pieces) == len(owners)
    assert owners == {
        instant: max(start for start, end in spans if start <= instant < end)
        for instant in range(40)
        if any(start <= instant < end for start, end in spans)
    }


@pytest.mark.parametrize(("most_pieces", "cells"), [(10**9, 16), (0, 1)])
def test_rows_that_overlap_everywhere_are_cut_at_buckets_only(
    most_pieces: int, cells: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(query, "_MANY_PIECES", most_pieces)
    monkeypatch.setattr(query, "_FEW_ROWS", 0)
    with open_run(write_engine(tmp_path, NESTED)) as run:
        arguments = standard_arguments(run)
        assert arguments["cells_per_bucket"] == cells
        assert ask(run, "ledger", arguments)["state_ns"].sum() == 40


@pytest.mark.parametrize(("depth", "is_refused"), [(10.0, False), (9.9, True)])
def test_rows_that_overlap_too_often_for_any_ledger_are_refused_with_what_to_do(
    depth: float, is_refused: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("_MANY_PIECES", 0), ("_MOST_PIECES", 0), ("_MOST_DEPTH", depth)):
        monkeypatch.setattr(query, name, value)
    folder = write_engine(tmp_path, [(0, 40)] * 9 + [(0, 40)])
    with open_run(folder) as run:
        if not is_refused:
            assert standard_arguments(run)["cells_per_bucket"] == 1
            return
        with pytest.raises(
            LimitError, match=r"engine_steps: found engine rows that add up to 10 times .* its own worker id"
        ):
            standard_arguments(run)


@pytest.mark.parametrize(("most_rows", "one_row_in"), [(20, 1), (19, 2), (10, 2), (9, 3)])
def test_percentiles_are_of_no_more_rows_than_fit_the_memory(
    most_rows: int, one_row_in: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(query, "_MOST_HELD_ROWS", most_rows)
    with open_run(write_engine(tmp_path, NESTED)) as run:
        arguments = standard_arguments(run)
        assert arguments["one_row_in"] == one_row_in
        assert ask(run, "pass_costs", arguments)["rows"].sum() == 20
