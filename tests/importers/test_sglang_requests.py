"""SGLang's request files: each finished request is a sample with its own times and versions."""

import json
from pathlib import Path
from typing import Any

import pytest

from rlscope.importers.sglang_requests import SGLANG_REQUESTS
from rlscope.trace.imported import Certainty
from tests.importers.filling import NS, Filled, importing

START_S = 1_760_000_000


def record(name: str = "a", **more: Any) -> dict[str, Any]:
    """What FileRequestMetricsExporter of SGLang 0.5 writes of one request."""
    return {
        "request_parameters": "{}",
        "id": name,
        "finish_reason": {"type": "stop", "matched": 1},
        "prompt_tokens": 100,
        "completion_tokens": 50,
        "cached_tokens": 64,
        "num_retractions": 1,
        "weight_version": "3",
        "request_received_ts": START_S + 0.5,
        "forward_entry_time": START_S + 1.0,
        "request_finished_ts": START_S + 5.0,
    } | more


def imported(tmp_path: Path, *records: Any) -> Filled:
    lines = (f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in records)
    return importing("sglang-request-metrics-20261122_07.log", SGLANG_REQUESTS)(tmp_path, *lines)


def test_a_request_is_a_sample_with_its_times_lengths_and_version(tmp_path: Path) -> None:
    run = imported(tmp_path, record())
    (row,) = run.rows("samples")
    assert (row["submitted_ns"], row["started_ns"], row["finished_ns"]) == (
        START_S * NS + NS // 2,
        START_S * NS + NS,
        START_S * NS + 5 * NS,
    )
    assert (row["prompt_tokens"], row["output_tokens"], row["cached_tokens"], row["preemptions"]) == (100, 50, 64, 1)
    assert row["versions"] == [{"version": 3, "start": 0, "end": 50}]
    assert (row["finish_reason"], row["version_source"]) == ("stop", "engine")
    assert run.imported.tables["samples"].certainty is Certainty.RECORDED


def test_a_response_over_several_weights_keeps_the_range_of_each(tmp_path: Path) -> None:
    runs = [{"version": "3", "start": 0, "end": 20}, {"version": "4", "start": 20, "end": 50}]
    (row,) = imported(tmp_path, record(weight_versions=runs)).rows("samples")
    assert [(run["version"], run["start"], run["end"]) for run in row["versions"]] == [(3, 0, 20), (4, 20, 50)]


@pytest.mark.parametrize(
    "runs",
    [
        [{"version": "3", "start": 0, "end": 49}],
        [{"version": "3", "start": 1, "end": 50}],
        [{"version": "3", "start": 0, "end": 20}, {"version": "4", "start": 21, "end": 50}],
        [{"version": "3"}],
    ],
)
def test_ranges_that_do_not_cover_the_response_are_not_believed(tmp_path: Path, runs: list[dict[str, Any]]) -> None:
    run = imported(tmp_path, record(weight_versions=runs))
    assert run.rows("samples")[0]["versions"] == []
    assert any("staleness of their tokens is unknown" in note for note in run.imported.notes)


def test_labels_that_are_no_numbers_count_in_the_order_in_which_they_appear(tmp_path: Path) -> None:
    labels = ("default", "step-a", "step-b", "step-a")
    rows = imported(tmp_path, *(record(str(n), weight_version=label) for n, label in enumerate(labels))).rows("samples")
    assert [row["versions"][0]["version"] for row in rows] == [0, 1, 2, 1]


def test_a_start_outside_the_request_is_unknown(tmp_path: Path) -> None:
    (row,) = imported(tmp_path, record(forward_entry_time=START_S + 5.1)).rows("samples")
    assert row["started_ns"] is None


def test_records_without_an_epoch_and_text_are_counted(tmp_path: Path) -> None:
    run = imported(tmp_path, record(), record(request_finished_ts=123.0), "{", "[]", record("b"))
    assert len(run.rows("samples")) == 2
    assert (run.imported.files[0].lines, run.imported.files[0].bad_lines) == (5, 3)
