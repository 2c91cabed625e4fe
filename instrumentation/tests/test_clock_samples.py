"""Workers read the clocks of other hosts, and an analysis knows the clocks better for it."""

import json
import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rlscope_otel import ManualClock, Run, start_run
from rlscope_otel.clock_samples import MOST_KEPT, ClockSample, ClockSamples, thinned

from rlscope.trace.store import open_run

Worker = Callable[[str], dict[str, object]]
S = 1_000_000_000


def test_a_sample_is_in_the_worker_file(run: Run, worker: Worker) -> None:
    run.clock_sample("node-0", 10, 500, 510, 40)
    run.flush()
    assert worker("w0")["clock_samples"] == [
        {"host": "node-0", "sent_ns": 10, "heard_ns": 500, "answered_ns": 510, "received_ns": 40}
    ]


def test_a_worker_that_took_none_states_none(run: Run, worker: Worker) -> None:
    run.flush()
    assert "clock_samples" not in worker("w0")


@pytest.mark.parametrize(
    "sample",
    [("", 1, 2, 3, 4), (None, 1, 2, 3, 4), ("h", 1, 2, 3, 0), ("h", 1, 3, 2, 4), ("h", 1.0, 2, 3, 4),
     ("h", 1, 2, 3, 1 << 62), ("h", True, 2, 3, 4)],
)  # fmt: skip
def test_a_sample_that_cannot_be_one_is_counted_and_not_kept(
    run: Run, worker: Worker, sample: tuple[object, ...]
) -> None:
    run.clock_sample(*sample)  # type: ignore[arg-type]
    run.flush()
    assert run.faults.counts == {"clock": 1}
    assert "clock_samples" not in worker("w0")


@given(st.lists(st.tuples(st.sampled_from(["a", "b"]), st.integers(0, 1000)), min_size=2, max_size=60))
def test_thinning_keeps_the_shortest_way_of_each_host_and_half_of_the_samples(given: list[tuple[str, int]]) -> None:
    samples = [ClockSample(host, at, 0, 0, at + way) for at, (host, way) in enumerate(given)]
    kept = thinned(samples)
    assert len(kept) <= len(samples) // 2 + 2
    assert [sample for sample in samples if sample in kept] == kept
    for host in {host for host, _ in given}:
        own = [sample.way_ns for sample in samples if sample.host == host]
        assert min(own) == min(sample.way_ns for sample in kept if sample.host == host)


def test_a_worker_that_takes_samples_all_day_keeps_a_bounded_number_all_over_the_day() -> None:
    samples = ClockSamples()
    for at in range(10_000):
        samples.add(ClockSample("node-0", at * S, at * S, at * S, at * S + 10))
    times = [sample["sent_ns"] for sample in samples.stated()]
    assert len(times) <= MOST_KEPT
    assert times[0] == 0 and isinstance(times[-1], int) and times[-1] > 9_900 * S


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def taken(run_dir: Path, worker_id: str) -> list[dict[str, object]]:
    return json.loads((run_dir / "workers" / f"{worker_id}.json").read_text()).get("clock_samples", [])


def test_a_worker_reads_the_clock_that_another_one_serves(tmp_path: Path) -> None:
    ahead = ManualClock(wall_ns=time.time_ns() + 60 * S)
    with start_run(tmp_path, "trainer", "t0", clock=ahead) as trainer, start_run(tmp_path, "sampler", "s0") as sampler:
        port = trainer.serve_clock(bind="127.0.0.1")
        assert port is not None
        sampler.read_clock("127.0.0.1", port, interval_s=0.01)
        until(lambda: sampler.flush() and len(taken(tmp_path, "s0")) > 2)
    sample = taken(tmp_path, "s0")[0]
    assert sample["host"] == socket.gethostname()
    assert isinstance(sample["heard_ns"], int) and isinstance(sample["sent_ns"], int)
    assert 50 * S < sample["heard_ns"] - sample["sent_ns"] < 70 * S
    assert (trainer.faults.counts, sampler.faults.counts) == ({}, {})


def test_a_server_that_is_not_there_or_is_another_one_is_counted_and_asked_again(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other, start_run(tmp_path, "sampler", "s0") as run:
        run.read_clock("127.0.0.1", other.getsockname()[1], interval_s=0.01)
        for _ in range(2):
            peer, _ = other.accept()
            peer.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n" * 40)
            peer.close()
        until(lambda: run.faults.counts.get("clock", 0) >= 2)
    assert taken(tmp_path, "s0") == []


def test_a_port_that_is_taken_is_counted_and_the_run_goes_on(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other, start_run(tmp_path, "sampler", "s0") as run:
        assert run.serve_clock(other.getsockname()[1], "127.0.0.1") is None
        assert run.faults.counts == {"clock": 1}


def test_a_run_that_is_not_recorded_serves_and_reads_nothing() -> None:
    run = start_run()
    assert run.serve_clock() is None
    run.read_clock("127.0.0.1", 1)
    assert run.faults.counts == {}


def test_the_clock_of_a_host_is_known_to_half_of_the_shortest_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clocks = {"node-0": ManualClock(), "node-1": ManualClock()}
    clocks["node-1"].step_wall(5 * S)
    runs: dict[str, Run] = {}
    for host, clock in clocks.items():
        role = "trainer" if host == "node-0" else "sampler"
        runs[host] = start_run(tmp_path, role, role, clock=clock, gpu_count=1, flush_interval_s=3600)
    trainer, sampler = runs.values()

    def pass_s(seconds: float) -> None:
        for clock in clocks.values():
            clock.advance(round(seconds * S))

    for step in range(4):
        with trainer.train_step(step, version_in=step, samples=1, tokens=1):
            pass_s(1.0)
        with trainer.publish_weights(step + 1):
            pass_s(0.5)
        with sampler.apply_weights(step + 1):
            pass_s(0.5)
        handle = sampler.sample(f"{step}", prompt_tokens=1)
        pass_s(0.2)
        handle.tokens(1, step + 1)
        handle.finish()
        pass_s(0.2)
        trainer.delivery(f"{step}", "trained", step=step + 1, consumer_version=step + 1)
        sent_ns = sampler.now_ns()
        pass_s(0.001 * (step + 1))
        heard_ns = trainer.now_ns()
        pass_s(0.003)
        sampler.clock_sample("node-0", sent_ns, heard_ns, heard_ns, sampler.now_ns())
    for host, each in runs.items():
        monkeypatch.setattr(socket, "gethostname", lambda host=host: host)
        each.stop()
    with open_run(tmp_path) as opened:
        (own,) = opened.clocks.hosts
    assert own.is_corrected
    assert (own.estimate.least_ns, own.estimate.most_ns) == (5 * S - 1_000_000, 5 * S + 3_000_000)
    assert own.estimate.stretches[0].offset_ns == 5 * S + 1_000_000
