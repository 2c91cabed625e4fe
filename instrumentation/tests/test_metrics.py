import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from rlscope_otel import metrics, start_run
from rlscope_otel.tallies import Tallies

from tests.manual_clock import ManualClock

LABELS = {
    "rlscope.queue",
    "rlscope.staleness",
    "rlscope.state",
    "rlscope.wait.reason",
    "rlscope.weights.phase",
    "rlscope.outcome",
    "rlscope.table",
}
"""The attributes of metrics. A policy version is none: it would be a new series at every publication."""
AGES = ((0, 100), (1, 10), (2, 20), (3, 7), (4, 3), (5, 4), (32, 5), (33, 6), (99, 1), (-1, 2))
"""Staleness and tokens; one below 0 counts as fresh."""
BUCKETS = {"0": 102, "1": 10, "2": 20, "3-4": 10, "5-8": 4, "17-32": 5, "33+": 7}
Points = dict[str, dict[tuple[str, ...], float]]


@pytest.fixture
def reader() -> InMemoryMetricReader:
    return InMemoryMetricReader()


@pytest.fixture
def provider(reader: InMemoryMetricReader):
    provider = MeterProvider([reader], shutdown_on_exit=False)
    yield provider
    provider.shutdown()


@pytest.fixture
def run(tmp_path: Path, clock: ManualClock, provider: MeterProvider):
    options = {"clock": clock, "flush_interval_s": 3600, "meter_provider": provider, "run_id": "monday"}
    with start_run(tmp_path, "trainer", "w0", gpu_count=2, kv_capacity_tokens=4096, **options) as started:
        yield started


@pytest.fixture
def points(reader: InMemoryMetricReader) -> Callable[[], Points]:
    """Values by metric and by the attributes that are not the worker's."""

    def read() -> Points:
        data = reader.get_metrics_data()
        found: Points = {}
        for metric in data.resource_metrics[0].scope_metrics[0].metrics if data and data.resource_metrics else ():
            for point in metric.data.data_points:
                attributes = dict(point.attributes)
                assert (attributes.pop("rlscope.worker.id"), attributes.pop("rlscope.role")) == ("w0", "trainer")
                assert attributes.pop("rlscope.run.id") == "monday"
                assert attributes.keys() <= LABELS
                found.setdefault(metric.name, {})[tuple(attributes.values())] = point.value
        return found

    return read


def test_metrics_say_what_was_flushed_so_far(run, clock, points):
    with run.train_step(1, version_in=5) as step:
        clock.advance(2_000_000_000)
        with run.wait("samples"):
            clock.advance(3_000_000_000)
        step.record(importance=[(age, tokens, tokens, tokens) for age, tokens in AGES])
    with run.publish_weights(6):
        clock.advance(500_000_000)
    run.engine_step(0, 1_500_000_000, busy_ns=1_000_000_000, running=4, waiting=7, decode_tokens=4, kv_used_tokens=99)
    run.engine_step(0, 1_000_000_000, running=3, decode_tokens=3)
    run.engine_step(0, 500_000_000, running=3, source="sampled")
    run.delivery("s1", "trained")
    run.delivery("s2", "dropped_stale")
    run.delivery("s3", "trained")
    run.delivery("s4", "eaten")
    run.queue_depth("samples", 12)
    run.queue_depth("samples", 9, capacity=32)
    assert points() == {}
    run.flush()
    found = points()
    assert {table: rows for table, rows in found.pop("rlscope.rows.dropped").items() if rows} == {("deliveries",): 1}
    written = {table: rows for table, rows in found.pop("rlscope.rows.written").items() if rows}
    assert written == {
        ("engine_steps",): 3,
        ("deliveries",): 3,
        ("queue_depths",): 2,
        ("activities",): 1,
        ("train_steps",): 1,
        ("weight_updates",): 1,
    }
    assert found == {
        "rlscope.engine.running": {(): 3},
        "rlscope.engine.waiting": {(): 0},
        "rlscope.engine.kv.used": {(): 99},
        "rlscope.engine.kv.capacity": {(): 4096},
        "rlscope.engine.decode": {(): 7},
        "rlscope.queue.depth": {("samples",): 9},
        "rlscope.queue.capacity": {("samples",): 32},
        "rlscope.deliveries": {("trained",): 2, ("dropped_stale",): 1},
        "rlscope.train.steps": {(): 1},
        "rlscope.train.staleness": {(bucket,): tokens for bucket, tokens in BUCKETS.items()},
        "rlscope.train.token_age": {(): sum(age * tokens for age, tokens in AGES)},
        "rlscope.weights.latest": {("publish",): 6},
        "rlscope.weights.updates": {("publish",): 1},
        "rlscope.weights.update.time": {("publish",): 0.5},
        "rlscope.worker.time": {
            ("wait", "samples"): 3.0,
            ("train",): 2.0,
            ("weight_update",): 0.5,
            ("forward_pass",): 2.0,
            ("between_passes",): 0.5,
        },
        "rlscope.worker.gpus": {(): 2},
        "rlscope.worker.heartbeat": {(): 5.501},
    }
    told_apart = {"rlscope.rows.dropped", "rlscope.rows.written"}
    assert found.keys() | told_apart == {metric.name for metric in metrics.METRICS}


def test_the_heartbeat_is_that_of_the_last_flush_that_could_write_and_ends_with_the_worker(
    run, clock, points, monkeypatch
):
    def refuse(*_: object) -> None:
        raise OSError("disk full")

    run.flush()
    clock.advance(7_000_000_000)
    run.queue_depth("samples", 12)
    with monkeypatch.context() as full:
        full.setattr(os, "pwrite", refuse)
        assert not run.flush()
    assert points()["rlscope.worker.heartbeat"] == {(): 0.001}
    assert run.flush()
    assert points()["rlscope.worker.heartbeat"] == {(): 7.001}
    run.stop()
    assert "rlscope.worker.heartbeat" not in points()


@pytest.mark.parametrize(
    ("paused", "generates", "seconds"), [(True, True, 2.0), (False, True, None), (False, False, 2.0)]
)
def test_an_engine_that_generates_while_it_applies_weights_is_not_updating(
    run, clock, points, paused, generates, seconds
):
    if generates:
        run.engine_step(0, 1)
    with run.apply_weights(3, paused=paused):
        clock.advance(2_000_000_000)
    run.flush()
    assert points().get("rlscope.worker.time", {}).get(("weight_update",)) == seconds
    assert points()["rlscope.weights.update.time"] == {("apply",): 2.0}


def test_a_part_of_an_update_is_no_further_time_of_the_worker(run, clock, points):
    with run.weight_update_part("drain", 3):
        clock.advance(2_000_000_000)
    run.flush()
    assert "rlscope.worker.time" not in points()
    assert points()["rlscope.weights.update.time"] == {("drain",): 2.0}


def test_a_version_never_goes_back_even_when_its_updates_are_written_out_of_order(run, points):
    for version in (3, 5, 4):
        with run.publish_weights(version):
            pass
    run.flush()
    assert points()["rlscope.weights.latest"] == {("publish",): 5}


def test_a_wait_that_was_flushed_before_the_step_around_it_ended_is_not_counted_twice(run, clock, points):
    with run.train_step(1, version_in=0):
        with run.wait("samples"):
            clock.advance(1_000_000_000)
        run.flush()
        clock.advance(4_000_000_000)
    run.flush()
    assert points()["rlscope.worker.time"] == {("wait", "samples"): 1.0, ("train",): 4.0}


def test_units_are_not_in_names():
    for metric in metrics.METRICS:
        assert metric.unit == "s" or re.fullmatch(r"\{[a-z]+\}", metric.unit)
        assert not metric.name.endswith(("_total", "_seconds", ".seconds"))


def test_a_loop_that_never_nests_keeps_bounded_state():
    tallies = Tallies()
    for number in range(3000):
        tallies.batch("activities", [["w0"], ["wait"], ["samples"], [number * 10], [number * 10 + 5]])
        tallies.settle()
    assert len(tallies._open) <= 1024
    assert tallies.values("worker.time") == {("wait", "samples"): 3000 * 5}


def test_a_metric_provider_that_fails_costs_only_the_metrics(tmp_path, rows, caplog):
    class Broken(MeterProvider):
        def get_meter(self, *_: object, **__: object):
            raise RuntimeError("no meter")

    provider = Broken(shutdown_on_exit=False)
    with start_run(tmp_path, "sampler", "w0", meter_provider=provider) as run:
        run.engine_step(0, 1)
    assert len(rows("engine_steps")) == 1
    assert "no meter" in caplog.text
    provider.shutdown()
