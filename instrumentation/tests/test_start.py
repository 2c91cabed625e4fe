import json
import re
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from rlscope_otel import Run, SetupError, start_run


def test_arguments_come_before_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("RLSCOPE_RUN_DIR", str(tmp_path / "from_env"))
    monkeypatch.setenv("RLSCOPE_ROLE", "trainer")
    monkeypatch.setenv("RLSCOPE_WORKER_ID", "from-env")
    with start_run() as from_env, start_run(tmp_path / "given", "sampler", "given") as given:
        assert (from_env.run_dir, from_env.worker_id) == (tmp_path / "from_env", "from-env")
        assert (given.run_dir, given.worker_id) == (tmp_path / "given", "given")


def test_a_host_that_changes_its_working_directory_does_not_move_the_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with start_run("run", "sampler", "w0") as run:
        (tmp_path / "elsewhere").mkdir()
        monkeypatch.chdir(tmp_path / "elsewhere")
        run.engine_step(0, 1)
    assert len(list((tmp_path / "run" / "engine_steps").iterdir())) == 1


def test_a_worker_without_a_name_gets_one_that_the_format_allows(tmp_path, monkeypatch):
    monkeypatch.setattr("socket.gethostname", lambda: "node 1/ü" + "x" * 200)
    with start_run(tmp_path, "sampler") as run:
        assert re.fullmatch(r"[A-Za-z0-9_.-]{1,128}", run.worker_id)
        assert run.worker_id.startswith("sampler-node-1--")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            {"role": None},
            r"role is None; expected sampler, trainer, colocated, auxiliary, controller\. Pass role= or set RLSCOPE_",
        ),
        ({"role": "boss"}, r"role is 'boss'"),
        ({"role": "sampler", "worker_id": "a/b"}, r"worker_id is 'a/b'; expected a name that matches"),
        ({"role": "sampler", "worker_id": ""}, r"worker_id is ''"),
        ({"role": "sampler", "worker_id": "x" * 129}, r"worker_id is 'xxx"),
        ({"role": "sampler", "gpu_count": -1}, r"gpu_count is -1; expected 0 or more"),
        ({"role": "sampler", "flush_interval_s": 0}, r"flush_interval_s is 0; expected more than 0"),
    ],
)
def test_a_wrong_setting_fails_loudly_and_creates_nothing(tmp_path, arguments, said):
    with pytest.raises(SetupError, match=said):
        start_run(tmp_path / "run", **arguments)
    assert not (tmp_path / "run").exists()


def test_a_wrong_number_in_the_environment_fails_loudly(tmp_path, monkeypatch):
    monkeypatch.setenv("RLSCOPE_GPU_COUNT", "eight")
    with pytest.raises(SetupError, match="RLSCOPE_GPU_COUNT is 'eight'"):
        start_run(tmp_path, "sampler")


@pytest.mark.parametrize(
    ("role", "arguments", "gpu_count"),
    [
        ("sampler", {}, 1),
        ("controller", {}, 0),
        ("sampler", {"gpu_ids": ("0", "1")}, 2),
        ("sampler", {"gpu_count": 0}, 0),
        ("trainer", {"gpu_count": 4, "gpu_ids": ("0",)}, 4),
    ],
)
def test_a_worker_owns_the_gpus_it_names_else_one(tmp_path, worker, role, arguments, gpu_count):
    with start_run(tmp_path, role, "w0", **arguments):
        assert worker("w0")["gpu_count"] == gpu_count


def test_an_auxiliary_worker_records_its_work_and_no_samples_because_they_are_not_the_policy_s(tmp_path, worker, rows):
    with start_run(tmp_path, "auxiliary", "judge-0", gpu_interval_s=0) as run:
        run.engine_step(0, 10, running=1)
        with run.activity("reward"):
            sample = run.sample("s0", prompt_tokens=1)
            sample.tokens(3, version=0)
            sample.finish()
    assert (worker("judge-0")["role"], worker("judge-0")["gpu_count"]) == ("auxiliary", 1)
    assert (len(rows("engine_steps", "start_ns")), len(rows("activities", "start_ns"))) == (1, 1)
    assert not (tmp_path / "samples").exists()
    assert (dict(run.faults.counts), worker("judge-0")["dropped"].get("samples", 0)) == ({}, 0)


def test_the_worker_file_is_there_from_the_start_and_says_when_it_stopped(tmp_path, worker, clock):
    run = start_run(
        tmp_path, "sampler", "w0", clock=clock, device_name="H200", kv_capacity_tokens=1000, framework="pipeline"
    )
    at_start = worker("w0")
    clock.advance(500)
    run.describe(max_running=64, kv_capacity_tokens=2000)
    run.stop()
    at_stop = worker("w0")
    assert (at_start["started_ns"], at_start["stopped_ns"], at_start["last_flush_ns"]) == (1_000_000, None, 1_000_000)
    assert (at_stop["started_ns"], at_stop["stopped_ns"], at_stop["last_flush_ns"]) == (1_000_000, 1_000_500, 1_000_500)
    assert (at_start["role"], at_start["device_name"], at_start["framework"]) == ("sampler", "H200", "pipeline")
    assert at_start["host"] == socket.gethostname()
    assert (at_start["kv_capacity_tokens"], at_stop["kv_capacity_tokens"], at_stop["max_running"]) == (1000, 2000, 64)


def test_a_process_that_can_start_no_thread_continues_unrecorded(tmp_path, monkeypatch, caplog):
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    active = start_run(tmp_path, "sampler", "w0")
    monkeypatch.setattr(threading.Thread, "start", refuse)
    run = start_run(tmp_path, "sampler", "w1")
    run.engine_step(0, 1)
    assert (run.active, run.stop(), dict(run.faults.counts)) == (False, True, {"start": 1})
    assert (active.active, active.stop(), dict(active.faults.counts)) == (True, True, {})
    assert [record.getMessage().split(" (")[0] for record in caplog.records] == [
        "rlscope: start: nothing is recorded: can't start new thread",
    ]


def test_workers_that_start_together_agree_on_one_run_and_on_whose_each_name_is(tmp_path, monkeypatch):
    monkeypatch.setattr(Path, "exists", lambda _: False)  # Each looks before the others have written.
    barrier = threading.Barrier(16)

    def start(number: int) -> Run:
        barrier.wait()
        return start_run(tmp_path, "sampler", f"w{number // 2}")

    with ThreadPoolExecutor(16) as pool:
        runs = list(pool.map(start, range(16)))
    for run in runs:
        run.stop()
    names = [f"w{number}{suffix}" for number in range(8) for suffix in ("", ".r1")]
    assert sorted(run.worker_id for run in runs) == names == sorted(path.stem for path in tmp_path.glob("workers/*"))
    assert {run.run_id for run in runs} == {json.loads((tmp_path / "run.json").read_text())["run_id"]}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run.json", "workers"]


def test_a_worker_that_comes_later_adds_only_settings_that_are_missing(tmp_path, caplog):
    start_run(tmp_path, "sampler", "s0", config={"total_gpus": 2, "gpus": (0, 1)}).stop()
    first = json.loads((tmp_path / "run.json").read_text())
    start_run(tmp_path, "trainer", "t0", config={"total_gpus": 3, "gpus": (0, 1), "samples_per_step": 8}).stop()
    second = json.loads((tmp_path / "run.json").read_text())
    assert second == {**first, "config": {"total_gpus": 2, "gpus": [0, 1], "samples_per_step": 8}}
    assert [record.getMessage().split(" (")[0] for record in caplog.records] == [
        "rlscope: config: run.json already has other values for total_gpus, and keeps them"
    ]


def test_settings_that_become_known_later_or_that_a_simultaneous_writer_lost_are_added_by_the_next_flush(
    tmp_path, worker
):
    path = tmp_path / "run.json"
    with start_run(tmp_path, "trainer", "t0", config={"total_gpus": 2}) as run:
        run.add_config({"total_gpus": 3, "samples_per_step": 8, "max_staleness": None})
        run.flush()
        known = json.loads(path.read_text())
        path.write_text(json.dumps({**known, "config": {"total_gpus": 2}}))
        run.flush()
        assert json.loads(path.read_text()) == known
    assert known["config"] == {"total_gpus": 2, "samples_per_step": 8}
    assert worker("t0")["config"] == {"total_gpus": 3, "samples_per_step": 8}


def test_what_a_trainer_and_an_engine_know_of_one_model_is_put_together(tmp_path):
    models = {"s": {"name": "m", "kv_heads": 2}, "t": {"name": "m", "kv_heads": 4, "layers": 3}, "other": {"layers": 5}}
    for worker_id, model in models.items():
        with start_run(tmp_path, "sampler", worker_id) as run:
            run.add_config({"model": model})
    config = json.loads((tmp_path / "run.json").read_text())["config"]
    assert config == {"model": {"name": "m", "kv_heads": 2, "layers": 3}}


def test_a_folder_of_another_run_or_format_is_refused(tmp_path):
    start_run(tmp_path, "sampler", "w0", run_id="monday").stop()
    start_run(tmp_path, "sampler", "w1", run_id="monday").stop()
    with pytest.raises(SetupError, match="holds run 'monday'; expected run 'tuesday'"):
        start_run(tmp_path, "sampler", "w2", run_id="tuesday")
    (tmp_path / "run.json").write_text('{"format": "rlscope-trace", "version": 2}')
    with pytest.raises(SetupError, match="version 2; expected format 'rlscope-trace' version 1"):
        start_run(tmp_path, "sampler", "w2")
    assert not (tmp_path / "workers" / "w2.json").exists()


def test_a_worker_name_that_is_taken_gets_a_suffix_and_each_states_the_name_that_it_asked_for_and_its_settings(
    tmp_path, worker, rows
):
    first = start_run(tmp_path, "sampler", "w0", config={"max_staleness": 1})
    first.engine_step(0, 1, running=1)
    first.stop()
    before = worker("w0")
    again = {"config": {"max_staleness": 7}}
    with start_run(tmp_path, "sampler", "w0", **again) as second, start_run(tmp_path, "sampler", "w0") as third:
        second.engine_step(0, 1, running=2)
        assert (second.worker_id, third.worker_id) == ("w0.r1", "w0.r2")
    assert worker("w0") == before
    assert {(row["worker_id"], row["running"]) for row in rows("engine_steps")} == {("w0", 1), ("w0.r1", 2)}
    stated = [(worker(name)["name"], worker(name)["config"]) for name in ("w0", "w0.r1")]
    assert stated == [("w0", {"max_staleness": 1}), ("w0", {"max_staleness": 7})]


def test_files_that_lie_under_our_name_are_not_overwritten(tmp_path, run, rows):
    (tmp_path / "engine_steps").mkdir()
    (tmp_path / "engine_steps" / "w0-000001.parquet").write_bytes(b"somebody's")
    run.engine_step(0, 1)
    run.flush()
    assert (tmp_path / "engine_steps" / "w0-000001.parquet").read_bytes() == b"somebody's"
    assert (tmp_path / "engine_steps" / "w0-000002.arrows").exists()
