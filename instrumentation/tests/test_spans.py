"""One span, three ways in: our context managers, the plain OpenTelemetry API, and the exporter. The rows agree."""

from collections.abc import Callable

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanProcessor
from opentelemetry.trace import Tracer, get_current_span
from rlscope_otel import Run, schema, start_run
from rlscope_otel.exporters import ParquetSpanExporter

START_NS, END_NS = 1_000_000, 1_000_500
PLAIN_SPANS: list[tuple[str, dict[str, object]]] = [
    ("rlscope.startup", {}),
    ("rlscope.wait", {"rlscope.wait.reason": "backpressure"}),
    ("rlscope.eval", {}),
    (
        "rlscope.train_step",
        {
            "rlscope.train.step": 4,
            "rlscope.train.version_in": 3,
            "rlscope.train.version_out": 4,
            "rlscope.train.samples": 8,
            "rlscope.train.tokens": 512,
            "rlscope.train.loss": 0.5,
            "rlscope.train.reward_mean": 1.0,
            "rlscope.train.importance.staleness": (0, 1),
            "rlscope.train.importance.tokens": (500, 12),
            "rlscope.train.importance.sum_w": (500.0, 11.0),
            "rlscope.train.importance.sum_w2": (500.0, 10.5),
            "rlscope.train.fresh.tokens": 300,
            "rlscope.train.fresh.sum_w": 300.0,
            "rlscope.train.fresh.sum_w2": 300.5,
        },
    ),
    ("rlscope.weights.publish", {"rlscope.weights.version": 4, "rlscope.weights.label": "ckpt-4"}),
    ("rlscope.weights.apply", {"rlscope.weights.version": 4, "rlscope.weights.paused": True}),
]


def by_context_managers(run: Run, clock) -> None:
    def take(phase) -> object:
        with phase as entered:
            clock.advance(END_NS - START_NS)
        clock.advance(START_NS - END_NS)
        return entered

    take(run.activity("startup"))
    take(run.wait("backpressure"))
    take(run.activity("eval"))
    with run.train_step(4, version_in=3, samples=8, tokens=512) as step:
        step.record(loss=0.5, reward_mean=1, importance=[(0, 500, 500, 500), (1, 12, 11, 10.5)], version_out=4)
        step.record(fresh=(300, 300, 300.5))
        clock.advance(END_NS - START_NS)
    clock.advance(START_NS - END_NS)
    take(run.publish_weights(4, label="ckpt-4"))
    take(run.apply_weights(4, paused=True))


def by_plain_spans(processor: SpanProcessor) -> None:
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(processor)
    for name, attributes in PLAIN_SPANS:
        provider.get_tracer("host").start_span(name, attributes=attributes, start_time=START_NS).end(END_NS)


def test_context_managers_plain_spans_and_the_exporter_give_the_same_rows(tmp_path, clock, rows, monkeypatch):
    ways: dict[str, Callable[[Run], None]] = {
        "context": lambda run: by_context_managers(run, clock),
        "processor": lambda run: by_plain_spans(run.span_processor),
        "exporter": lambda run: by_plain_spans(SimpleSpanProcessor(ParquetSpanExporter())),
    }
    found = {}
    for way, record in ways.items():
        monkeypatch.setenv("RLSCOPE_RUN_DIR", str(tmp_path / way))
        with start_run(tmp_path / way, "trainer", "w0", clock=clock, flush_interval_s=3600) as run:
            record(run)
        found[way] = {table: rows(table, run_dir=tmp_path / way) for table in schema.TABLES}
    assert [len(found["context"][table]) for table in ("activities", "train_steps", "weight_updates")] == [3, 1, 2]
    assert found["processor"] == found["context"]
    assert found["exporter"] == found["context"]


def host_tracer(run: Run) -> Tracer:
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(run.span_processor)
    return provider.get_tracer("host")


@pytest.mark.parametrize(
    ("name", "attributes", "said"),
    [
        ("rlscope.train_step", {"rlscope.train.step": 1}, "a span lacks rlscope.train.version_in"),
        ("rlscope.weights.apply", {"rlscope.weights.version": "v4"}, "rlscope.weights.version is 'v4'; expected int"),
        ("rlscope.weights.apply", {"rlscope.weights.version": True}, "is True; expected int"),
        (
            "rlscope.train_step",
            {"rlscope.train.step": 1, "rlscope.train.version_in": 0, "rlscope.train.importance.tokens": (1,)},
            "must be lists of one length",
        ),
    ],
)
def test_a_span_under_our_name_that_is_unusable_is_counted_as_dropped_and_said(
    run, worker, caplog, name, attributes, said
):
    host_tracer(run).start_span(name, attributes=attributes).end()
    run.flush()
    assert sum(worker("w0")["dropped"].values()) == 1
    assert said in caplog.text


def test_our_phases_are_no_part_of_the_host_s_own_traces(run):
    tracer = host_tracer(run)
    with tracer.start_as_current_span("host") as host, run.train_step(1, version_in=0):
        assert get_current_span() is host


def test_the_host_s_limits_sampler_and_switch_take_nothing_from_the_run(tmp_path, rows, monkeypatch, caplog):
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_off")
    monkeypatch.setenv("OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT", "1")
    monkeypatch.setenv("OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT", "2")
    with start_run(tmp_path, "trainer", "w0") as run, run.publish_weights(1, label="a long label", bytes=5):
        run.engine_step(0, 1)
    assert [(row["label"], row["bytes"]) for row in rows("weight_updates")] == [("a long label", 5)]
    assert (len(rows("engine_steps")), caplog.text) == (1, "")


def test_the_exporter_does_nothing_without_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    by_plain_spans(SimpleSpanProcessor(ParquetSpanExporter()))
    assert list(tmp_path.iterdir()) == []


def test_the_exporter_records_into_the_run_of_the_environment_s_folder(tmp_path, rows, monkeypatch):
    monkeypatch.setenv("RLSCOPE_RUN_DIR", str(tmp_path / "named"))
    with start_run(tmp_path / "other", "sampler", "w0"), start_run(tmp_path / "named", "sampler", "w1"):
        by_plain_spans(SimpleSpanProcessor(ParquetSpanExporter()))
    assert {row["worker_id"] for row in rows("activities", run_dir=tmp_path / "named")} == {"w1"}
    assert rows("activities", run_dir=tmp_path / "other") == []


def test_the_exporter_without_a_role_fails_its_export_and_says_why_once(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("RLSCOPE_RUN_DIR", str(tmp_path))
    by_plain_spans(SimpleSpanProcessor(ParquetSpanExporter()))
    assert caplog.text.count("role is None") == 1


def test_the_sdk_s_own_configuration_from_the_environment_reaches_the_trace(start_script, columns, worker, monkeypatch):
    program = """
from opentelemetry.sdk._configuration import _OTelSDKConfigurator
_OTelSDKConfigurator().configure()
from opentelemetry import trace
tracer = trace.get_tracer("host")
with tracer.start_as_current_span("rlscope.wait", attributes={"rlscope.wait.reason": "samples"}):
    tracer.start_span("other").end()
"""
    for name, exporter in (("TRACES", "rlscope_parquet"), ("METRICS", "none"), ("LOGS", "none")):
        monkeypatch.setenv(f"OTEL_{name}_EXPORTER", exporter)
    monkeypatch.setenv("RLSCOPE_WORKER_ID", "w0")
    process = start_script(program)
    assert (process.communicate(timeout=60)[1], process.returncode) == ("", 0)
    assert columns("activities", "activity", "reason") == [("wait", "samples")]
    assert worker("w0")["gpu_count"] == 0
    assert worker("w0")["stopped_ns"] is not None
