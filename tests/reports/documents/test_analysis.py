import json
import math
from dataclasses import replace

import pytest

from rlscope.analysis.data_quality import SampledEngine
from rlscope.analysis.result import Throughput
from rlscope.reports.documents.analysis import as_document
from tests.reports.analysis_fixture import empty_analysis, full_analysis, hostile_analysis

SHAPE = {
    "run": {"run_id", "duration_s", "total_gpus", "trainer_gpus", "sampler_gpus", "steps", "samples_trained",
            "tokens_trained", "window"},
    "verdict": {"bottleneck", "headline", "next"},
    "throughput": {"achieved_tokens_per_s", "steady_tokens_per_s"},
    "ledger": {"total_gpu_s", "states"},
    "staleness": {"tokens", "samples", "in_flight_mean", "in_queue_mean", "over_cap_tokens", "version_source_tokens"},
    "data_quality": {"skipped_files", "dropped_rows", "workers_without_end", "clock_offsets", "gaps"},
}  # fmt: skip


@pytest.mark.parametrize("make", [full_analysis, empty_analysis, hostile_analysis])
def test_the_document_is_strict_json_and_keeps_its_keys(make):
    document = as_document(make())
    assert json.loads(json.dumps(document, allow_nan=False)) == document
    assert document["schema_version"] == 1
    for part, keys in SHAPE.items():
        assert keys <= set(document[part])


def test_the_parts_of_the_lists_have_their_keys():
    document = as_document(full_analysis())
    assert {"role", "state", "reason", "gpu_s", "share_ratio"} <= set(document["ledger"]["states"][0])
    assert {"mean", "p50", "p95", "p99", "max", "histogram"} == set(document["staleness"]["tokens"])
    assert document["staleness"]["tokens"]["histogram"][0] == [0, 410_000]
    assert {"rule", "severity", "cost_gpu_s", "evidence", "start_ns", "end_ns"} <= set(document["findings"][0])
    sampled = replace(full_analysis().data_quality, sampled_engines=(SampledEngine("e0", 0.5, False),))
    (engine,) = as_document(replace(full_analysis(), data_quality=sampled))["data_quality"]["sampled_engines"]
    assert engine == {"worker_id": "e0", "interval_s": 0.5, "knows_busy": False}
    assert document["data_quality"]["skipped_files"][0].keys() == {"path", "why"}
    assert {"start_ns", "end_ns", "first_step", "last_step"} == set(document["run"]["window"])


def test_the_ledger_adds_up_to_the_nanosecond():
    ledger = as_document(full_analysis())["ledger"]
    assert sum(state["gpu_ns"] for state in ledger["states"]) == ledger["total_gpu_ns"]
    assert ledger["total_gpu_ns"] / 1e9 == ledger["total_gpu_s"]


def test_what_is_not_known_is_null():
    document = as_document(empty_analysis())
    assert document["run"]["window"] is None
    assert document["staleness"]["tokens"] is None
    assert document["throughput"]["steady_tokens_per_s"] is None


def test_what_is_no_number_becomes_null():
    odd = replace(full_analysis(), throughput=Throughput(math.nan, math.inf, None))
    throughput = as_document(odd)["throughput"]
    assert [throughput[name] for name in ("achieved_tokens_per_s", "steady_tokens_per_s")] == [None, None]
