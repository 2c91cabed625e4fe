"""Engine rows are read once for two grids: what is answered of each is what it is when asked about alone."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from rlscope.trace.query import ask
from rlscope.trace.store import open_run
from tests.nightly import costly
from tests.trace_folder import Row, activity, engine_row, update_row, worker, write_run

LIFE_NS = (10, 90)
CELLS = st.tuples(st.integers(0, 10), st.integers(1, 70))
SPANS = st.tuples(st.integers(0, 100), st.integers(0, 100)).map(lambda pair: tuple(sorted(pair)))


@st.composite
def disjoint_rows(draw: st.DrawFn) -> list[Row]:
    """Rows of two engines, some of them before or after their lives, some that touch, some of which are no work."""
    rows: list[Row] = []
    for name in ("a", "b"):
        cuts = sorted(draw(st.lists(st.integers(0, 100), max_size=16)))
        for start, end in zip(cuts[::2], cuts[1::2], strict=False):
            source, running = draw(st.sampled_from([("measured", 0), ("measured", 3), ("sampled", 0), ("sampled", 2)]))
            row = engine_row(name, start, end, draw(st.integers(0, end - start)), decode_tokens=running)
            rows.append({**row, "source": source, "running": running})
    return rows


@st.composite
def spans(draw: st.DrawFn) -> dict[str, list[Row]]:
    names = st.sampled_from(["wait", "eval", "startup", "checkpoint"])
    drawn = draw(st.lists(st.tuples(st.sampled_from("ab"), SPANS, names), max_size=6))
    updates = draw(st.lists(st.tuples(st.sampled_from("ab"), SPANS), max_size=2))
    return {
        "activities": [
            activity(own, span[0], span[1], name, "requests" if name == "wait" else None) for own, span, name in drawn
        ],
        "weight_updates": [update_row(own, span[0], span[1], 1, "apply") for own, span in updates],
    }


def answers(folder: Path, rows: list[Row], others: dict[str, list[Row]], asked: list[Any]) -> list[pl.DataFrame]:
    workers = [worker(name, "sampler", *LIFE_NS) for name in "ab"]
    run = write_run(folder, workers, None, engine_steps=rows, **others)
    with open_run(run) as opened:
        return [ask(opened, name, arguments) for name, arguments in asked]


def grid(origin_ns: int, cell_ns: int, beside: tuple[int, int] = (0, 0), **more: Any) -> dict[str, Any]:
    cells = {"origin_ns": origin_ns, "cell_ns": cell_ns, "bucket_ns": 2 * cell_ns, "cells_per_bucket": 2}
    return {**cells, "beside_origin_ns": beside[0], "beside_cell_ns": beside[1], "idle_after_ns": 7, **more}


@costly
@given(disjoint_rows(), spans(), CELLS, CELLS)
def test_rows_in_order_have_the_answers_that_sorted_rows_have(
    rows: list[Row], others: dict[str, list[Row]], one: tuple[int, int], other: tuple[int, int]
) -> None:
    names = ("engine_pauses", "ledger")
    asked = [(name, grid(*one, other, rows_disjoint=fast)) for fast in (True, False) for name in names]
    with TemporaryDirectory() as folder:
        found = answers(Path(folder), rows, others, asked)
    for name, fast, slow in zip(names, found, found[len(names) :], strict=False):
        assert fast.equals(slow), name


@costly
@given(disjoint_rows(), spans(), CELLS, CELLS)
def test_two_grids_together_have_the_answers_of_each_alone(
    rows: list[Row], others: dict[str, list[Row]], one: tuple[int, int], other: tuple[int, int]
) -> None:
    names = ("idle_pieces", "ledger", "engine_buckets")
    together = [
        (name, grid(*own, beside, rows_disjoint=True)) for own, beside in ((one, other), (other, one)) for name in names
    ]
    alone = [(name, grid(*own, rows_disjoint=True)) for own in (one, other) for name in names]
    with TemporaryDirectory() as folder:
        found = answers(Path(folder), rows, others, [*together, *alone])
    for (name, _), mine, expected in zip(alone, found[: len(alone)], found[len(alone) :], strict=True):
        assert mine.equals(expected), name
