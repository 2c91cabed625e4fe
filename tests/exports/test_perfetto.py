"""A Perfetto trace read back: its states are the ledger, its flows end, its times are ordered."""

import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import rlscope
from rlscope.errors import ArgumentError, OutputError, RlscopeError
from rlscope.trace.query import ask, ask_in_pages, standard_arguments
from rlscope.trace.store import open_run
from tests.exports.perfetto_reader import ReadTrace, proto, read_trace
from tests.nightly import nightly
from tests.trace_folder import (
    activity,
    delivery_row,
    engine_row,
    queue_row,
    sample_row,
    train_row,
    update_row,
    worker,
    write_run,
)

TRACES = sorted(path.parent for path in (Path(__file__).parents[2] / "sample_traces").glob("*/run.json"))
OF_THE_DAY = "vllm_trl"
"""A real recording."""
SECOND = 10**9
Export = Callable[..., ReadTrace]


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten seconds of two engines and a trainer, which publishes once."""
    return write_run(
        tmp_path_factory.mktemp("runs") / "run",
        [
            worker("e0", "sampler", 0, 10 * SECOND, device_name="H100"),
            worker("e1", "sampler", 0, 10 * SECOND),
            worker("t0", "trainer", 0, 10 * SECOND, gpu_count=4),
        ],
        engine_steps=[
            engine_row("e0", 0, 2 * SECOND, SECOND, running=2, kv_used_tokens=70),
            engine_row("e0", 2 * SECOND, 3 * SECOND, running=1, waiting=5),
        ],
        activities=[activity("t0", 0, 3 * SECOND, "wait", "samples")],
        train_steps=[train_row("t0", 3 * SECOND, 5 * SECOND, 1)],
        weight_updates=[
            update_row("t0", 5 * SECOND, 6 * SECOND, 1, "publish"),
            update_row("e0", 6 * SECOND, 7 * SECOND, 1, paused=True),
            update_row("e1", 8 * SECOND, 8 * SECOND, 1),
        ],
        samples=[
            sample_row("a", "e0", [(0, 0, 3)], started_ns=0, finished_ns=2 * SECOND),
            sample_row("b", "e0", [(0, 0, 2), (1, 2, 5)], started_ns=SECOND, finished_ns=9 * SECOND),
            sample_row("c", "e0", [(1, 0, 1)], started_ns=2 * SECOND, finished_ns=2 * SECOND),
            sample_row("d", "e0", [(1, 0, 1)], started_ns=None, finished_ns=2 * SECOND),
        ],
        deliveries=[delivery_row("a", "t0", step=1, consumer_version=0, taken_ns=3 * SECOND)],
        queue_depths=[queue_row("t0", SECOND, 3), queue_row("t0", 4 * SECOND, 1)],
    )


@pytest.fixture(scope="module")
def export(tmp_path_factory: pytest.TempPathFactory) -> Export:
    """The trace of a run, read back."""
    path = tmp_path_factory.mktemp("traces") / "run.pftrace"

    def exported(run_dir: Path, **part: Any) -> ReadTrace:
        return read_trace(rlscope.export_perfetto(run_dir, path, **part).path)

    return exported


@pytest.fixture(scope="module")
def whole(run_dir: Path, export: Export) -> ReadTrace:
    return export(run_dir)


def ledger_of(folder: Path) -> Counter[tuple[str, str, str | None]]:
    totals: Counter[tuple[str, str, str | None]] = Counter()
    with open_run(folder) as run:
        for row in ask(run, "ledger", standard_arguments(run)).iter_rows(named=True):
            totals[row["worker_id"], row["state"], row["reason"]] += row["state_ns"]
    return totals


def flows_of(trace: ReadTrace) -> tuple[Counter[int], Counter[int]]:
    """How often each flow starts, and how often it ends."""
    starts = Counter(flow for each in trace.slices for flow in each.starts)
    return starts, Counter(flow for each in trace.slices for flow in each.ends)


@pytest.mark.parametrize(
    "folder", [each if each.name == OF_THE_DAY else nightly(each) for each in TRACES], ids=lambda path: path.name
)
def test_the_states_of_a_recorded_run_are_its_ledger_to_the_nanosecond_and_every_flow_ends(
    folder: Path, export: Export
) -> None:
    trace, ledger = export(folder), ledger_of(folder)
    owners = {worker_id for worker_id, _, _ in ledger}
    assert {key: state_ns for key, state_ns in trace.state_ns().items() if key[0] in owners} == ledger
    starts, ends = flows_of(trace)
    assert starts == ends and set(starts.values()) <= {1}
    assert bool(starts) == any(each.category == "apply" for each in trace.slices)


def test_workers_are_processes_with_their_role_host_gpus_and_device(whole: ReadTrace) -> None:
    assert whole.labels == {
        "run run": [],
        "e0": ["sampler", "host-a", "1 GPU", "H100"],
        "e1": ["sampler", "host-a", "1 GPU"],
        "t0": ["trainer", "host-a", "4 GPUs"],
        "rlscope": [],
    }


def test_a_wait_has_its_reason_and_every_state_its_kind_as_category(whole: ReadTrace) -> None:
    states = whole.row("state", "t0")
    assert [(each.name, each.category, each.details) for each in states] == [
        ("waiting_for_samples", "wait", {"reason": "samples"}),
        ("train", "work", {}),
        ("publishing_weights", "weights", {}),
        ("unattributed", "unknown", {}),
    ]


def test_a_publication_leads_to_each_engine_that_applies_it(whole: ReadTrace) -> None:
    updates = whole.row("weight updates")
    published, first, second = updates
    assert [each.name for each in updates] == ["publish v1", "apply v1", "apply v1"]
    assert [each.process for each in updates] == ["t0", "e0", "e1"]
    assert [each.end_ns for each in updates] == [6 * SECOND, 7 * SECOND, None]
    assert sorted(published.starts) == sorted(first.ends + second.ends) and len(set(published.starts)) == 2
    assert first.details == {"version": 1, "paused": True}


def test_samples_lie_on_tracks_of_their_own_with_their_versions(whole: ReadTrace) -> None:
    first, second, third = whole.row("samples")
    assert [(each.name, each.start_ns, each.end_ns) for each in (first, second, third)] == [
        ("a", 0, 2 * SECOND),
        ("b", SECOND, 9 * SECOND),
        ("c", 2 * SECOND, None),
    ]
    assert (first.category, second.category) == ("trained", "undelivered")
    assert second.details["version_runs"] == "0:0-2, 1:2-5"
    assert (first.details["step"], first.details["output_tokens"]) == (1, 3)


def test_a_sample_without_a_start_is_left_out_and_counted_in_the_trace(run_dir: Path, tmp_path: Path) -> None:
    written = rlscope.export_perfetto(run_dir, tmp_path / "run.pftrace")
    assert written.notes == ("1 segment of a sample without a recorded start left out.",)
    assert [each.name for each in read_trace(written.path).row("notes")] == list(written.notes)


def test_counters_change_when_their_values_do_and_have_units(whole: ReadTrace) -> None:
    assert whole.counters == {
        ("e0", "batch_size"): [(0, 2), (2 * SECOND, 1), (3 * SECOND, 0)],
        ("e0", "waiting_requests"): [(0, 0), (2 * SECOND, 5)],
        ("e0", "kv_used_tokens"): [(0, 70)],
        ("run run", "queue_depth samples"): [(SECOND, 3), (4 * SECOND, 1)],
        ("run run", "staleness_mean"): [(5 * SECOND, 0)],
        ("run run", "staleness_p95"): [(5 * SECOND, 0)],
        ("run run", "staleness_max"): [(5 * SECOND, 0)],
    }
    assert whole.units["e0", "batch_size"] == "requests" and whole.units["run run", "staleness_p95"] == "versions"


def test_a_part_of_the_run_cuts_slices_and_begins_with_the_counters_as_they_were(run_dir: Path, export: Export) -> None:
    trace = export(run_dir, from_s=1.5, to_s=4)
    assert [(each.name, each.start_ns, each.end_ns) for each in trace.row("state", "t0")] == [
        ("waiting_for_samples", 1_500_000_000, 3 * SECOND),
        ("train", 3 * SECOND, 4 * SECOND),
    ]
    assert trace.counters["e0", "batch_size"] == [(1_500_000_000, 2), (2 * SECOND, 1), (3 * SECOND, 0)]
    assert trace.counters["run run", "queue_depth samples"] == [(1_500_000_000, 3)]
    assert {each.name for each in trace.row("samples")} == {"a", "b", "c"}


def test_what_ends_where_the_part_begins_or_begins_where_it_ends_is_not_in_it(run_dir: Path, export: Export) -> None:
    trace = export(run_dir, from_s=2, to_s=3)
    assert {each.name for each in trace.row("samples")} == {"b", "c"}
    assert [each.name for each in trace.row("state", "t0")] == ["waiting_for_samples"]


@pytest.mark.parametrize(
    ("part", "applied"), [({"to_s": 8}, ["e0"]), ({"to_s": 8.5}, ["e0", "e1"]), ({"from_s": 5.5}, [])]
)
def test_a_flow_is_drawn_only_where_both_its_ends_are_shown(
    part: dict[str, float], applied: list[str], run_dir: Path, export: Export
) -> None:
    trace = export(run_dir, **part)
    starts, ends = flows_of(trace)
    assert starts == ends
    assert [each.process for each in trace.row("weight updates") if each.ends] == applied


def test_only_the_workers_that_are_asked_for_are_shown(run_dir: Path, export: Export) -> None:
    trace = export(run_dir, workers=["t0", "e1"])
    assert {each.process for each in trace.slices} == {"t0", "e1", "run run", "rlscope"}
    assert [each.process for each in trace.row("weight updates") if each.ends] == ["e1"]
    assert flows_of(trace)[0] == flows_of(trace)[1]


def test_a_trace_that_grows_too_large_is_cut_and_says_where(tmp_path: Path) -> None:
    passes = [engine_row("e0", start * 10, start * 10 + 10, 5, running=start % 7) for start in range(11_000)]
    run_dir = write_run(tmp_path / "run", [worker("e0", "sampler", 0, 110_000)], engine_steps=passes)
    written = rlscope.export_perfetto(run_dir, tmp_path / "cut.pftrace", max_mb=1)
    trace = read_trace(written.path, is_cut=True)
    assert written.size_bytes == written.path.stat().st_size <= 1_000_000
    (note,) = written.notes
    assert note.startswith("cut at ") and "--from" in note and "--max-mb" in note
    assert [each.name for each in trace.row("notes")] == [note]


def test_the_clock_of_the_trace_is_utc(whole: ReadTrace) -> None:
    first = whole.packets[0]
    clocks = {each.clock_id: each.timestamp for each in first.clock_snapshot.clocks}
    assert clocks == {proto.BUILTIN_CLOCK_BOOTTIME: 0, proto.BUILTIN_CLOCK_REALTIME: 0}


@pytest.mark.parametrize(
    ("part", "said"),
    [
        ({"from_s": -1}, "-1 s"),
        ({"from_s": 10}, "10 s"),
        ({"from_s": float("nan")}, "--from: found nan"),
        ({"to_s": float("inf")}, "--to: found inf"),
        ({"from_s": 5, "to_s": 5}, "5 s to 5"),
        ({"workers": ["t9"]}, "one of e0, e1, t0"),
        ({"max_mb": 0}, "max_mb"),
    ],
)
def test_a_part_that_the_run_does_not_have_is_refused(
    part: dict[str, Any], said: str, run_dir: Path, tmp_path: Path
) -> None:
    with pytest.raises(ArgumentError, match=said):
        rlscope.export_perfetto(run_dir, tmp_path / "run.pftrace", **part)


def test_a_file_that_cannot_be_written_is_named(run_dir: Path, tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="nowhere"):
        rlscope.export_perfetto(run_dir, tmp_path / "nowhere" / "run.pftrace")


def test_without_the_package_the_message_says_how_to_install_it(
    run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "perfetto.protos.perfetto.trace.perfetto_trace_pb2", None)
    with pytest.raises(RlscopeError, match=r"rlscope\[perfetto\]"):
        rlscope.export_perfetto(run_dir, tmp_path / "run.pftrace")


def test_an_answer_in_pages_is_the_answer_in_its_order(run_dir: Path) -> None:
    with open_run(run_dir) as run:
        arguments = standard_arguments(run)
        whole = ask(run, "state_intervals", arguments).rows()
        pages = [page.rows() for page in ask_in_pages(run, "state_intervals", arguments, page_rows=3)]
    assert [len(page) for page in pages[:-1]] == [3] * (len(pages) - 1) and len(pages) > 2
    assert [row for page in pages for row in page] == whole
