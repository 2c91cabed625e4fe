from collections.abc import Callable
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st
from rlscope_otel.buffers import RowBuffer
from rlscope_otel.faults import Faults
from rlscope_otel.samples import Sample, SampleSink


def sink_and_rows() -> tuple[SampleSink, Callable[[], list[dict[str, object]]]]:
    buffer = RowBuffer(limit=100, pressed_at=100, wake=lambda: None)

    def read() -> list[dict[str, object]]:
        return [{"output_tokens": row[7], "versions": row[8]} for row in buffer.oldest(100)]

    return SampleSink(buffer, lambda: 0, Faults(), limit=100), read


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3))))
def test_expanding_the_runs_gives_the_tokens_that_were_appended(appended):
    sink, read = sink_and_rows()
    sample = Sample(sink, "s", None, 0, 0, None, "engine")
    for count, version in appended:
        sample.tokens(count, version)
    sample.finish()

    (row,) = read()
    tokens = [version for count, version in appended for _ in range(count)]
    runs = row["versions"]
    assert [version for version, start, end in runs for _ in range(start, end)] == tokens
    assert row["output_tokens"] == len(tokens)
    assert [start for _, start, _ in runs] == [0, *(end for _, _, end in runs)][: len(runs)]
    assert all(start < end for _, start, end in runs)
    assert all(left[0] != right[0] for left, right in pairwise(runs))


def test_a_sample_is_a_row_with_everything_it_was_told(run, clock, rows):
    at_start = {"group_id": "g1", "segment": 1, "prompt_tokens": 20, "submitted_ns": 5}
    at_end = {"preemptions": 2, "cached_tokens": 16, "env_wait_ns": 4}
    sample = run.sample("s1", **at_start)
    sample.started(at_ns=7)
    sample.tokens(3, 0)
    sample.tokens(1, 1)
    sample.torn(1)
    clock.advance(10)
    sample.finish("length", **at_end)
    (row,) = rows("samples")
    assert row.pop("versions") == [{"version": 0, "start": 0, "end": 3}, {"version": 1, "start": 3, "end": 4}]
    ids, times = {"sample_id": "s1", "worker_id": "w0"}, {"started_ns": 7, "finished_ns": 1_000_010}
    sampled = {"output_tokens": 4, "version_source": "engine", "torn_tokens": 1, "finish_reason": "length"}
    assert row == ids | times | sampled | at_start | at_end


def test_only_the_first_finish_counts_and_no_token_after_it(run, rows):
    sample = run.sample("s1")
    sample.tokens(2, 1)
    sample.finish("stop", at_ns=10)
    for version in (1, 2, 2):
        sample.tokens(3, version)
    sample.finish("length", at_ns=20)
    (row,) = rows("samples")
    assert (row["finish_reason"], row["finished_ns"], row["output_tokens"]) == ("stop", 10, 2)
    assert row["versions"] == [{"version": 1, "start": 0, "end": 2}]


def test_what_still_runs_at_stop_is_written_as_unfinished_with_its_tokens(run, clock, columns):
    running, finished = run.sample("running"), run.sample("finished")
    running.tokens(5, 2)
    finished.finish()
    clock.advance(30)
    run.stop()
    running.finish("stop")
    assert columns("samples", "sample_id", "finish_reason", "output_tokens", "finished_ns") == [
        ("finished", "stop", 0, 1_000_000),
        ("running", "unfinished", 5, 1_000_030),
    ]


def test_a_handle_that_is_never_finished_costs_bounded_memory():
    sink, read = sink_and_rows()
    handles = [Sample(sink, str(number), None, 0, 0, None, "engine") for number in range(150)]
    assert len(sink.running) == 100
    for handle in (handles[0], handles[149]):
        handle.finish()
    assert (len(sink.running), len(read())) == (99, 2)
