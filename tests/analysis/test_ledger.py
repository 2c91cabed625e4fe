"""Laws of the ledger: it closes to the nanosecond, agrees with a count of every one, and moves with the clock."""

from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlscope.trace.query import ask, cells_per_bucket
from rlscope.trace.store import open_run
from tests.nightly import costly
from tests.trace_folder import Row, activity, engine_row, train_row, update_row, worker, write_run

EXTENT_NS = 60
TIMES = st.tuples(st.integers(-5, EXTENT_NS + 5), st.integers(-5, EXTENT_NS + 5)).map(lambda pair: tuple(sorted(pair)))
REASONS = st.sampled_from(["samples", "staleness_cap", "backpressure", "weights"])


def states_of(folder: Path, cell_ns: int) -> Counter[Any]:
    with open_run(folder) as run:
        cells = {"origin_ns": 0, "cell_ns": cell_ns, "cells_per_bucket": 2, "rows_disjoint": False}
        frame = ask(run, "ledger", cells)
    totals: Counter[Any] = Counter()
    for row in frame.iter_rows(named=True):
        totals[row["worker_id"], row["state"], row["reason"]] += row["state_ns"]
    return totals


@st.composite
def traces(draw: st.DrawFn) -> dict[str, list[Row]]:
    spans = draw(
        st.lists(st.tuples(TIMES, st.sampled_from(["wait", "eval", "checkpoint", "generate"]), REASONS), max_size=6)
    )
    steps = draw(st.lists(TIMES, max_size=3))
    updates = draw(st.lists(st.tuples(TIMES, st.sampled_from(["publish", "apply"])), max_size=3))
    rows = draw(st.lists(TIMES, max_size=6))
    return {
        "activities": [
            activity("w", start, end, name, reason if name == "wait" else None) for (start, end), name, reason in spans
        ],
        "train_steps": [train_row("w", start, end, step) for step, (start, end) in enumerate(steps)],
        "weight_updates": [update_row("w", start, end, 1, phase) for (start, end), phase in updates],
        "engine_steps": [
            engine_row(
                "w",
                start,
                end,
                draw(st.integers(0, max(0, end - start))),
                decode_tokens=draw(st.integers(0, 1)),
                prefill_tokens=draw(st.integers(0, 1)),
            )
            for start, end in rows
        ],
    }


def counted(tables: dict[str, list[Row]]) -> Counter[str]:
    """Each nanosecond given, one by one, to the span or row that covers it and began last."""
    names = {"wait": "wait", "generate": "generating", "publish": "publishing_weights", "apply": "applying_weights"}
    spans = [(r["start_ns"], r["end_ns"], 2, names.get(r["activity"], r["activity"])) for r in tables["activities"]]
    spans += [(r["start_ns"], r["end_ns"], 1, "train") for r in tables["train_steps"]]
    spans += [(r["start_ns"], r["end_ns"], 3, names[r["phase"]]) for r in tables["weight_updates"]]
    clipped = [(max(0, s), min(EXTENT_NS, e), layer, n) for s, e, layer, n in spans]
    spans = [span for span in clipped if span[0] < span[1]]
    claims = [span for span in spans if span[3] == "eval"]
    rows = [(max(0, r["start_ns"]), min(EXTENT_NS, r["end_ns"]), 4, i) for i, r in enumerate(tables["engine_steps"])]
    rows = [r for r in rows if r[0] < r[1] and not any(c[0] <= r[0] < c[1] for c in claims)]
    totals: Counter[str] = Counter()
    for now in range(EXTENT_NS):
        covering = [piece for piece in (*spans, *rows) if piece[0] <= now < piece[1]]
        owner = max(covering, key=lambda p: (p[0], -p[1], p[2], str(p[3])), default=None)
        if owner is None:
            totals["unattributed"] += 1
        else:
            totals["engine" if owner[2] == 4 else owner[3]] += 1
    return totals


def coarse(states: Counter[Any]) -> Counter[str]:
    engine = {"decoding", "prefilling", "mixed_passes", "other_passes", "between_passes"}
    waits = {"waiting", "no_requests", "waiting_for_samples", "waiting_for_staleness_cap"}
    totals: Counter[str] = Counter()
    for (_, state, _), state_ns in states.items():
        totals["engine" if state in engine else "wait" if state in waits else state] += state_ns
    return totals


@costly
@given(traces(), st.integers(1, 80), st.booleans())
def test_every_nanosecond_is_in_the_state_that_began_last_and_in_one_interval(
    tables: dict[str, list[Row]], cell_ns: int, has_gpu: bool
) -> None:
    with TemporaryDirectory() as folder:
        run = write_run(Path(folder), [worker("w", "sampler", 0, EXTENT_NS, gpu_count=int(has_gpu))], **tables)
        states = states_of(run, cell_ns)
        with open_run(run) as opened:
            intervals = ask(opened, "state_intervals", {"origin_ns": 0, "cell_ns": cell_ns})
    totals: Counter[Any] = Counter()
    for row in intervals.iter_rows(named=True):
        totals[row["worker_id"], row["state"], row["reason"]] += row["end_ns"] - row["start_ns"]
    assert [0, *intervals["end_ns"]] == [*intervals["start_ns"], EXTENT_NS]
    # Engine rows of a worker without GPUs count nothing.
    assert coarse(totals) == counted(tables if has_gpu else {**tables, "engine_steps": []})
    assert states == (totals if has_gpu else Counter())


@pytest.mark.parametrize(
    ("engine_rows", "cells"), [(0, 1), (799, 1), (800, 2), (1600, 4), (6399, 8), (6400, 16), (10**9, 16)]
)
def test_a_cell_has_at_least_four_rows_of_engines_on_average(engine_rows: int, cells: int) -> None:
    assert cells_per_bucket(engine_rows, buckets=100.0) == cells
