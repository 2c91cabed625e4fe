"""vLLM's log: windows of ten seconds, idle stretches, and pass times only where the batch stayed full."""

import json
from pathlib import Path

import pytest

from rlscope.importers.vllm import VLLM_LOG
from rlscope.trace.imported import Certainty
from tests.importers.filling import NS, fill, importing

imported = importing("engine.log", VLLM_LOG, utc_offset_s=0)
FIXTURE = Path(__file__).parent / "fixtures" / "vllm" / "engine.log"
CAPACITY = "INFO 03-22 00:00:00 [kv_cache_utils.py:1319] GPU KV cache size: 10,000 tokens\n"


def window(stamp: str, *, prompt: float = 0.0, output: float, running: int, waiting: int = 0) -> str:
    """A line as vLLM 0.11 to 0.32 prints it."""
    return (
        f"(APIServer pid=7) INFO 03-22 {stamp} [loggers.py:257] Engine 000: Avg prompt throughput: {prompt:.1f}"
        f" tokens/s, Avg generation throughput: {output:.1f} tokens/s,"
        f" Running: {running} reqs, Waiting: {waiting} reqs,"
        " GPU KV cache usage: 12.5%, Prefix cache hit rate: 0.0%\n"
    )


def test_a_window_has_its_tokens_and_the_mean_batch_of_its_ends(tmp_path: Path) -> None:
    run = imported(
        tmp_path,
        CAPACITY,
        window("00:00:10", output=100.0, running=8),
        window("00:00:20", prompt=50.0, output=200.0, running=4, waiting=0),
    )
    _, row = run.rows("engine_steps")
    assert row["end_ns"] - row["start_ns"] == 10 * NS
    assert (row["running"], row["decode_tokens"], row["prefill_tokens"]) == (6, 2_000, 500)
    assert (row["kv_used_tokens"], row["forward_passes"], row["busy_ns"]) == (1_250, None, None)
    assert row["source"] == "log"
    assert run.imported.tables["engine_steps"].certainty is Certainty.INFERRED


@pytest.mark.parametrize(
    ("running", "waiting", "settings", "is_timed"),
    [
        ((100, 98), (1, 1), "", True),
        ((100, 97), (1, 1), "", False),
        ((100, 100), (1, 0), "", False),
        ((100, 100), (0, 0), "max_num_seqs=100\n", True),
        ((100, 100), (0, 0), "max_num_seqs=101\n", False),
    ],
)
def test_a_pass_time_follows_only_from_a_batch_that_stayed_full_and_the_same(
    tmp_path: Path, running: tuple[int, int], waiting: tuple[int, int], settings: str, is_timed: bool
) -> None:
    run = imported(
        tmp_path,
        settings,
        window("00:00:10", output=1_000.0, running=running[0], waiting=waiting[0]),
        window("00:00:20", output=1_000.0, running=running[1], waiting=waiting[1]),
    )
    _, row = run.rows("engine_steps")
    assert row["forward_passes"] == (round(10_000 / (sum(running) / 2)) if is_timed else None)
    assert row["busy_ns"] == (10 * NS if is_timed else None)


@pytest.mark.parametrize(
    ("head", "clock"),
    [
        (
            "2026-03-22T00:00:{s}.250000001Z (APIServer pid=7) INFO 03-22 02:00:{s} [loggers.py:257] Engine 000: ",
            "wall",
        ),
        ('{{"timestamp": "2026-03-22T00:00:{s}.250+00:00", "level": "INFO", "message": "Engine 000: ', "wall"),
        ("2026-03-22 00:00:{s},250 - vllm.v1.metrics.loggers - INFO - Engine 000: ", "local"),
        ("[2026-03-22 00:00:{s}] INFO Engine 000: ", "local"),
        ("DEBUG 03-22 00:00:{s} [v1/metrics/loggers.py:257] Engine 000: ", "local"),
        ("INFO 03-22 00:00:{s} metrics.py:417] ", "local"),
    ],
)
def test_a_line_has_the_time_that_it_begins_with_in_any_format(tmp_path: Path, head: str, clock: str) -> None:
    _, counts = window("", output=100.0, running=4).split("Engine 000: ")
    run = imported(tmp_path, *(head.format(s=s) + counts for s in (10, 20)), utc_offset_s=None)
    assert [row["decode_tokens"] for row in run.rows("engine_steps")] == [1_000, 1_000]
    assert run.rows("engine_steps")[-1]["end_ns"] // NS % 86_400 == 20
    assert run.imported.clock == clock


def test_a_pass_of_speculative_decoding_yields_the_accepted_tokens(tmp_path: Path) -> None:
    accepted = "INFO 03-22 00:00:10 [metrics.py:101] SpecDecoding metrics: Mean acceptance length: 2.50, Drafted: 9\n"
    lines = [window(stamp, output=1_000.0, running=10, waiting=1) for stamp in ("00:00:10", "00:00:20")]
    _, row = imported(tmp_path, lines[0], accepted, lines[1]).rows("engine_steps")
    assert (row["decode_tokens"], row["forward_passes"], row["busy_ns"]) == (10_000, 400, 10 * NS)


def test_preemptions_are_those_that_a_line_states(tmp_path: Path) -> None:
    lines = [window(stamp, output=100.0, running=4, waiting=3) for stamp in ("00:00:10", "00:00:20")]
    lines[1] = lines[1].replace("3 reqs,", "3 reqs, Deferred: 1 reqs, Preemptions: 12,")
    run = imported(tmp_path, *lines)
    assert [row["preemptions"] for row in run.rows("engine_steps")] == [None, 12]


def test_an_engine_that_logs_zeros_and_then_nothing_is_idle_until_it_logs_again(tmp_path: Path) -> None:
    run = imported(
        tmp_path,
        window("00:00:10", output=100.0, running=4),
        window("00:00:20", output=10.0, running=0),
        window("00:00:30", output=0.0, running=0),
        window("00:01:30", output=50.0, running=4),
    )
    assert len(run.rows("engine_steps")) == 3
    # From 20 to 30 a window of zeros, and nothing printed until the window that begins at 80.
    first_ns = run.rows("engine_steps")[0]["end_ns"]
    idle = [
        ((row["start_ns"] - first_ns) / NS, (row["end_ns"] - first_ns) / NS, row["reason"])
        for row in run.rows("activities")
    ]
    assert idle == [(10.0, 70.0, "requests")]


@pytest.mark.parametrize(
    ("stamps", "length_s"), [("00:00:30 00:01:00 00:01:30", 30), ("00:00:01 00:00:02 00:00:03", 1)]
)
def test_windows_are_as_long_as_the_log_shows(tmp_path: Path, stamps: str, length_s: int) -> None:
    run = imported(tmp_path, *(window(stamp, output=100.0, running=4) for stamp in stamps.split()))
    assert [row["decode_tokens"] for row in run.rows("engine_steps")] == [100 * length_s] * 3


def test_silence_after_a_window_with_work_is_not_called_idle(tmp_path: Path) -> None:
    run = imported(tmp_path, window("00:00:10", output=100.0, running=4), window("00:01:30", output=50.0, running=4))
    assert run.rows("activities") == []


def test_silence_while_a_long_prompt_runs_is_no_part_of_the_next_window(tmp_path: Path) -> None:
    run = imported(
        tmp_path,
        window("00:00:10", prompt=10.0, output=0.8, running=1),
        window("00:00:20", output=0.0, running=1),
        window("00:01:30", prompt=7_000.0, output=0.8, running=1),
    )
    assert [row["prefill_tokens"] for row in run.rows("engine_steps")] == [100, 70_000]
    assert run.rows("activities") == []


SETTINGS = "args: {'draft_tensor_parallel_size': 1, 'tensor_parallel_size': 2, 'max_num_seqs': 64}\n"
PIPELINE = "config: tensor_parallel_size=2, pipeline_parallel_size=3, data_parallel_size=4\n"


@pytest.mark.parametrize(
    ("head", "engines", "found"),
    [
        (SETTINGS + CAPACITY, ("Engine 000", "Engine 001"), {"engine": (2, 64, 10_000), "engine-1": (2, 64, 10_000)}),
        (SETTINGS + PIPELINE, ("Engine 000",), {"engine": (6, 64, None)}),
        (SETTINGS + CAPACITY, ("4 Engines Aggregated",), {"engine": (8, 256, 40_000)}),
    ],
)
def test_engines_of_one_log_are_workers_with_the_gpus_and_limits_of_its_settings(
    tmp_path: Path, head: str, engines: tuple[str, ...], found: dict[str, tuple[int | None, ...]]
) -> None:
    lines = [
        window(stamp, output=1.0, running=1).replace("Engine 000", engine)
        for stamp in ("00:00:10", "00:00:20")
        for engine in engines
    ]
    run = imported(tmp_path, head, *lines)
    workers = {path.stem: json.loads(path.read_text()) for path in (run.folder / "workers").iterdir()}
    facts = "gpu_count", "max_running", "kv_capacity_tokens"
    assert {name: tuple(worker.get(fact) for fact in facts) for name, worker in workers.items()} == found
    used = {name: capacity and capacity // 8 for name, (_gpus, _limit, capacity) in found.items()}
    assert {row["worker_id"]: row["kv_used_tokens"] for row in run.rows("engine_steps")} == used


@pytest.mark.parametrize(
    ("prefixes", "names"),
    [
        (("APIServer pid=7", "EngineCore_DP0 pid=8"), {"engine"}),
        (("WorkerDict pid=7", "WorkerDict pid=8"), {"WorkerDict-7", "WorkerDict-8"}),
        (("Server pid=7", "Server pid=7, ip=10.0.0.2"), {"Server-7", "Server-7-10.0.0.2"}),
        # A launcher's own words stand alone, and before an actor's name.
        (("not an actor",), {"engine"}),
        (("not an actor) (Worker[rank=0] pid=7",), {"Worker-rank-0-7"}),
        # Prefixes of kubectl, docker compose, srun, and grep with and without line numbers.
        (("[pod/a-0/vllm] (", "[pod/a-1/vllm] ("), {"engine-pod-a-0-vllm", "engine-pod-a-1-vllm"}),
        (("vllm-1  | (", "vllm-2  | ("), {"engine-vllm-1", "engine-vllm-2"}),
        (("0: (", "1: ("), {"engine-0", "engine-1"}),
        (("e/a.log:7:(", "e/b.log:7:(", "e/a.log:8:("), {"engine-e-a.log", "engine-e-b.log"}),
        (("    7\t(", "> ("), {"engine"}),
    ],
)
def test_processes_of_one_server_are_one_engine_and_actors_and_containers_are_several(
    tmp_path: Path, prefixes: tuple[str, ...], names: set[str]
) -> None:
    line = window("00:00:10", output=1.0, running=1)
    lines = [line.replace("(" if prefix[-1] == "(" else "APIServer pid=7", prefix) for prefix in prefixes]
    assert {row["worker_id"] for row in imported(tmp_path, *lines).rows("engine_steps")} == names


def test_a_real_log_has_the_tokens_that_the_hooks_counted_in_the_same_run(tmp_path: Path) -> None:
    run = fill(tmp_path / "run", (FIXTURE, VLLM_LOG), utc_offset_s=0)
    tokens = sum(row["decode_tokens"] for row in run.rows("engine_steps"))
    assert tokens == pytest.approx(205_907, rel=0.001)
    # 25 s without requests hold one whole window of 10 s, and parts of two that had some.
    assert [(row["end_ns"] - row["start_ns"]) / NS for row in run.rows("activities")] == [10.0]


def test_a_log_that_is_passed_twice_is_read_once(tmp_path: Path) -> None:
    (tmp_path / "latest.log").symlink_to(FIXTURE)
    once, twice = (
        fill(tmp_path / name / "run", *((path, VLLM_LOG) for path in paths), utc_offset_s=0)
        for name, paths in {"once": [FIXTURE], "twice": [FIXTURE, tmp_path / "latest.log"]}.items()
    )
    assert twice.rows("engine_steps") == once.rows("engine_steps")
