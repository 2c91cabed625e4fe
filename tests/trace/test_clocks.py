"""Clocks of several hosts that disagree change nothing that is counted, and times by no more than stated."""

import json
import shutil
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, Final

import polars as pl
import pytest

from benchmarks.token_simulator import Layout, Updates, simulate_world
from benchmarks.token_simulator.cases import PLAIN
from rlscope.analysis.data_quality import _clock_offsets, assess_quality, contradictions
from rlscope.trace.clocks import ONE_CLOCK
from rlscope.trace.query import ask, ask_own, standard_arguments
from rlscope.trace.store import OpenRun, open_run
from tests.several_hosts import NS, START_NS, MadeRun, made_run, off

WEEK_S: Final = 7 * 86_400
YEAR_S: Final = 365 * 86_400
SKEWS: Final = {
    "5 s": {"be1": off(5.0)},
    "60 s": {"be0": off(60.0), "be2": off(-60.0)},
    "the trainer's by a week": {"a": off(-WEEK_S)},
    "all": {"a": off(3.0, 1e-4), "be0": off(-5.0), "be1": off(60.0, -1e-4), "be2": off(WEEK_S, 2e-5)},
}
"""Clocks by host; the others are right."""


def counted(run: OpenRun) -> dict[str, Any]:
    """What no clock may change."""
    arguments = standard_arguments(run)
    staleness = ask(run, "token_staleness", arguments)
    return {
        "rows": run.row_counts,
        "outcomes": ask(run, "delivery_outcomes").rows(),
        "tokens": ask(run, "token_balance").rows(),
        "staleness": staleness.rows(),
        "steps": ask(run, "training_steps").select("step", "samples", "tokens", "response_tokens").rows(),
        "gaps": run.gaps,
        "faults": ask(run, "row_faults").rows(),
    }


def states(run: OpenRun) -> dict[tuple[str, str], int]:
    """GPU-nanoseconds by worker and state."""
    rows = ask(run, "ledger", standard_arguments(run)).group_by("worker_id", "state").agg(pl.col("state_ns").sum())
    return {(row["worker_id"], row["state"]): row["state_ns"] for row in rows.iter_rows(named=True)}


def latencies(run: OpenRun) -> list[tuple[str, int]]:
    """Publication to application and time in the queue, in ns, with a name each."""
    updates = ask(run, "weight_update_latency")
    found = [
        (f"{row['worker_id']} {row['version']}", row["applied_ns"] - row["publish_start_ns"])
        for row in updates.iter_rows(named=True)
    ]
    waits = ask_own(run, "SELECT sample_id, taken_ns - queued_ns AS wait_ns FROM deliveries ORDER BY sample_id")
    return found + waits.rows()


@cache
def made() -> MadeRun:
    return made_run()


@pytest.fixture(scope="module")
def true(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with open_run(made().write(tmp_path_factory.mktemp("true") / "run", {})) as run:
        assert not run.clocks.corrected
        return counted(run), states(run), latencies(run)


def spread_ns(run: OpenRun) -> int:
    known = [each.uncertainty_ns for each in run.clocks.hosts]
    assert known and None not in known
    return max(each for each in known if each is not None)


@pytest.mark.parametrize(("name", "queue_host"), [("5 s", None), ("the trainer's by a week", None), ("all", "a")])
def test_clocks_that_disagree_change_no_count_and_no_time_by_more_than_stated(
    name: str, queue_host: str | None, true: Any, tmp_path: Path
) -> None:
    counts, ledger, times = true
    with open_run(made().write(tmp_path / "run", SKEWS[name], queue_host)) as run:
        assert counted(run) == counts
        most_ns = spread_ns(run)
        assert most_ns < 100_000_000
        own = states(run)
        assert own.keys() == ledger.keys()
        # A second by a clock that gains 100 ppm is 0.1 ms longer.
        assert max(abs(own[each] - ledger[each]) for each in own) <= 41 * 2e-4 * NS
        found = latencies(run)
        assert [each for each, _ in found] == [each for each, _ in times]
        misses = [abs(one - other) for (_, one), (_, other) in zip(found, times, strict=True)]
        assert max(misses) <= most_ns
        assert min(wait_ns for _, wait_ns in found) >= 0


@pytest.mark.parametrize("queue_host", [None, "a"], ids=["queued by the engine", "queued by the trainer"])
def test_a_few_wrong_times_of_the_queue_do_not_hide_whose_clock_it_is(queue_host: str | None, tmp_path: Path) -> None:
    spoiled = made_run(engines=1)
    for index in (10, 50):
        spoiled.tables["deliveries"][index]["queued_ns"] = 0
    with open_run(spoiled.write(tmp_path / "run", {"be0": off(-5.0)}, queue_host)) as run:
        assert run.clocks.corrected == {"be0"}
        waits = ask_own(run, "SELECT taken_ns - queued_ns AS wait_ns FROM deliveries WHERE queued_ns > 1e18")["wait_ns"]
        true_ns = [row["taken_ns"] - row["queued_ns"] for row in made_run(engines=1).tables["deliveries"]]
        assert len(waits) == len(true_ns) - 2
        assert abs(waits.mean() - sum(true_ns) / len(true_ns)) <= spread_ns(run) + 5_000_000


def test_a_run_of_one_host_is_left_alone(tmp_path: Path) -> None:
    one = made_run(engines=1, steps=3)
    one.workers = [{**each, "host": "a"} for each in one.workers]
    with open_run(one.write(tmp_path / "run", {"a": off(5.0)})) as run:
        assert run.clocks is ONE_CLOCK
        tables = run.connection.execute("SELECT table_name FROM information_schema.tables").fetchall()
        assert not any("recorded" in str(name) for (name,) in tables)


def test_an_imported_run_is_left_alone(tmp_path: Path) -> None:
    """Its times may be laid out, and prove nothing."""
    folder = made_run(engines=1, steps=3).write(tmp_path / "run", {"be0": off(5.0)})
    manifest = json.loads((folder / "run.json").read_text())
    imported = {"framework": "trl", "carriers": [], "files": [], "clock": "wall"}
    with open_run(folder) as run:
        assert run.clocks.corrected == {"be0"}
    (folder / "run.json").write_text(json.dumps({**manifest, "imported": imported}))
    with open_run(folder) as run:
        assert run.imported is not None and run.clocks is ONE_CLOCK


def test_rows_stored_twice_are_counted_once_and_corrected(true: Any, tmp_path: Path) -> None:
    twice = made_run()
    twice.workers = [{**each, "rows": {"samples": 80, "weight_updates": 40}} for each in twice.workers]
    folder = twice.write(tmp_path / "run", SKEWS["5 s"])
    for table in ("samples", "weight_updates"):
        shutil.copy(folder / table / "e1-000001.parquet", folder / table / "e1-000002.parquet")
    with open_run(folder) as run:
        assert run.clocks.corrected == {"be1"}
        assert [gap for gap in run.gaps if "stored twice" in gap]
        counts, _, _ = true
        assert counted(run) == {**counts, "gaps": run.gaps}
        assert ask_own(run, "SELECT count(*) FROM samples").item() == counts["rows"]["samples"]


def test_a_users_select_reads_corrected_tables_and_no_others(tmp_path: Path) -> None:
    with open_run(made().write(tmp_path / "run", SKEWS["60 s"])) as run:
        starts = ask_own(run, "SELECT max(started_ns) - min(started_ns) AS apart_ns FROM workers")
        assert starts.item() <= spread_ns(run) * 2
        names = ask_own(run, "SELECT table_name FROM information_schema.tables")["table_name"].to_list()
        assert not any(name.startswith(("recorded_", "clock_shifts")) for name in names)


def test_data_quality_states_offset_and_uncertainty(tmp_path: Path) -> None:
    with open_run(made().write(tmp_path / "run", SKEWS["5 s"])) as run:
        assert ask(run, "engine_row_order")["rows_disjoint"].to_list() == [True], "rows stay in order"
        asked = ("worker_extents", "row_faults", "sampled_engines", "delivery_outcomes", "token_balance")
        answers = {name: ask(run, name) for name in asked}
        quality = assess_quality(run, answers)
        most_s = spread_ns(run) / NS
        (offset,) = quality.clock_offsets
        assert (offset.host, offset.against, offset.is_corrected) == ("be1", "a", True)
        assert offset.uncertainty_s is not None and abs(offset.offset_s - 5) <= offset.uncertainty_s <= most_s
        assert quality.clock_uncertainty_s is not None and most_s <= quality.clock_uncertainty_s <= 2 * most_s


@pytest.mark.parametrize("queued_ns", [0, START_NS - YEAR_S * NS, START_NS + YEAR_S * NS])
def test_a_time_in_the_queue_that_no_sample_has_leaves_the_uncertainty_as_it_is(queued_ns: int, tmp_path: Path) -> None:
    spoiled = made_run()
    for row in spoiled.tables["deliveries"][::40]:
        row["queued_ns"] = queued_ns
    with open_run(spoiled.write(tmp_path / "run", SKEWS["5 s"])) as run:
        assert run.clocks.corrected == {"be1"}
        assert spread_ns(run) < 100_000_000


def test_a_host_in_another_year_is_left_out_and_named(tmp_path: Path) -> None:
    with open_run(made_run(engines=2, steps=3).write(tmp_path / "run", {"be1": off(YEAR_S)})) as run:
        assert not run.clocks.corrected
        assert any("engine_steps: 3 rows have a time far from the rest of the run" in gap for gap in run.gaps)
        extents = ask(run, "worker_extents")
        assert extents["end_ns"].max() - extents["start_ns"].min() < 10 * NS


def test_trainers_that_publish_to_their_own_engines_one_after_the_other_move_no_clock(tmp_path: Path) -> None:
    both, other = made_run(engines=1, steps=8), made_run(engines=1, steps=8, seed=1)
    names = {"t0": "t1", "a": "d", "e0": "e1", "be0": "be1"}
    both.workers += [{name: names.get(str(value), value) for name, value in each.items()} for each in other.workers]
    for table, rows in other.tables.items():
        late_ns = 300_000_000 if table == "weight_updates" else 0
        for row in rows:
            renamed = row | {"worker_id": names[row["worker_id"]]}
            if "sample_id" in row:
                renamed["sample_id"] = f"other {row['sample_id']}"
            both.add(table, renamed | {name: row[name] + late_ns for name in ("start_ns", "end_ns") if name in row})
    with open_run(both.write(tmp_path / "run", {})) as run:
        assert (run.clocks.corrected, run.clocks.contradiction_ns) == (set(), 0)


LATE: Final = replace(PLAIN, updates=Updates(publish_s=0.05, transfer_s=0.8, apply_s=0.1))
"""Weights that travel for 0.8 s leave 0.95 s between the bounds of every engine's clock."""


@pytest.mark.parametrize(("by_s", "is_moved"), [(0.0, False), (0.005, False), (0.4, False), (0.6, True), (-2.0, True)])
def test_a_clock_that_is_off_is_named_and_moved_where_that_surely_brings_it_nearer_to_the_truth(
    by_s: float, is_moved: bool, tmp_path: Path
) -> None:
    simulate_world(replace(LATE, clocks_off_s=(by_s, 0.0, 0.0)), Layout(4, 4, 8), 16, 3, tmp_path / "run")
    with open_run(tmp_path / "run") as run:
        assert run.clocks.corrected == ({"host-b"} if is_moved else set()) and not contradictions(run.clocks)
        named = list(_clock_offsets(run.clocks))
    assert [each.host for each in named] == ["host-b"] * (by_s != 0.0)
    assert all(abs(each.offset_s - by_s) < abs(by_s) for each in named)
    assert all((each.uncertainty_s is not None) == is_moved for each in named)


def test_a_clock_that_is_set_during_a_run_is_named_as_a_contradiction(tmp_path: Path) -> None:
    def set_forward(true_ns: int) -> int:
        return true_ns + (2 * NS if true_ns >= START_NS + 20 * NS else 0)

    with open_run(made().write(tmp_path / "run", {"a": set_forward})) as run:
        (gap,) = contradictions(run.clocks)
        assert "effects precede their causes on other hosts by up to" in gap
