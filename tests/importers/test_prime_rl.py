"""A prime-rl output folder: steps before the times of their rows, model calls as segments, and what was trained."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from rlscope.api import doctor
from rlscope.errors import ImportFileError
from rlscope.frameworks import framework
from rlscope.importers.importer import open_source
from rlscope.importers.prime_rl import PRIME_RL
from rlscope.importers.step_rows import step_importer
from rlscope.trace.imported import Certainty
from tests.importers.filling import NS, Filled, fill, importing, ledger_s

FIXTURE = Path(__file__).parent / "fixtures" / "prime_rl"
VLLM = FIXTURE.parent / "vllm" / "engine.log"
METRICS = step_importer(framework("prime-rl"))
START_S = 1_780_000_000


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Filled:
    return fill(tmp_path_factory.mktemp("prime") / "run", (FIXTURE, PRIME_RL))


def trainer_row(step: int, time_s: float, /, **seconds: float) -> dict[str, Any]:
    return {"step": step, "time": time_s, **{f"time/{name}": value for name, value in seconds.items()}}


def imported(tmp_path: Path, *rows: dict[str, Any]) -> Filled:
    lines = (json.dumps(row) + "\n" for row in rows)
    return importing("metrics.jsonl", METRICS, gpus={"trainer": 1, "sampler": 1})(tmp_path, *lines)


def test_the_trainers_phases_end_where_its_row_was_written(run: Filled) -> None:
    trainer = run.spans_s("trainer", START_S * NS)
    first = [(name, round(start, 2), round(end, 2)) for name, start, end in trainer[:4]]
    assert first == [
        ("wait", 0.0, 20.0),
        ("other", 20.0, 20.5),
        ("train_step", 20.5, 30.5),
        ("publish", 30.5, 32.5),
    ]
    assert run.imported.tables["train_steps"].certainty is Certainty.PLACED


def test_staleness_and_throughput_are_kept_as_reported(tmp_path: Path) -> None:
    rows = imported(
        tmp_path,
        {"step": 1, "time": START_S + 5, "time/pack": 0.5, "time/step": 5.0, "off_policy/mean": 0.5},
        {"step": 1, "time": START_S + 9, "perf/throughput": 418.0, "perf/peak_memory": 40.0},
        trainer_row(1, START_S + 10, step=10.0, wait_for_batch=5.0, forward_backward=5.0),
    ).rows("reported")
    assert sorted((row["worker_id"], row["step"], row["name"], row["value"]) for row in rows) == [
        ("orchestrator", 1, "off_policy/mean", 0.5),
        ("trainer", 1, "perf/throughput", 418.0),
    ]


def test_the_doctor_lists_only_files_that_the_folder_does_not_consist_of(tmp_path: Path) -> None:
    folder = shutil.copytree(FIXTURE, tmp_path / "prime")
    assert doctor(folder).beside == ()
    shutil.copy(VLLM, folder / "other.log")
    assert [each.path for each in doctor(folder).beside] == [folder / "other.log"]


def test_the_ledger_of_both_sides_is_known(run: Filled) -> None:
    states = ledger_s(run.folder)
    trainer = states["trainer"]
    assert trainer["waiting_for_samples"] == pytest.approx(2 * (20.0 + 3 * 8.0), abs=0.1)
    assert trainer["train"] == pytest.approx(2 * 40.0, abs=0.1)
    assert trainer["publishing_weights"] == pytest.approx(2 * 8.0, abs=0.1)
    assert trainer["checkpoint"] == pytest.approx(2 * 3.0, abs=0.1)
    # Four GPUs of inference, which generate while any call of the episodes runs.
    assert sum(trainer.values()) / 2 == pytest.approx(97.08, abs=0.01)
    assert states["sampler"]["generating"] > 0
    assert states["sampler"]["no_requests"] > 0


def test_training_steps_have_the_versions_tokens_and_results_of_their_rows(run: Filled) -> None:
    steps = run.rows("train_steps")
    assert [(row["step"], row["version_in"], row["version_out"]) for row in steps] == [
        (1, 0, 1),
        (2, 1, 2),
        (3, 2, 3),
        (4, 3, 4),
    ]
    assert [row["loss"] for row in steps] == [0.01, 0.02, 0.03, 0.04]
    assert [row["samples"] for row in steps] == [4] * 4
    trained = sum(row["tokens"] for row in steps)
    outputs = sum(row["output_tokens"] for row in run.rows("samples") if not row["sample_id"].endswith("x"))
    assert trained > outputs


def test_model_calls_are_segments_with_their_own_times_and_cached_tokens(run: Filled) -> None:
    segments = [row for row in run.rows("samples") if row["sample_id"] == "s1g0k0"]
    assert [(row["segment"], row["prompt_tokens"], row["output_tokens"], row["cached_tokens"]) for row in segments] == [
        (0, 120, 300, 0),
        (1, 500, 200, 440),
    ]
    assert [row["finish_reason"] for row in segments] == ["stop", "stop"]
    assert segments[0]["submitted_ns"] == START_S * NS + 700_000_000
    assert {row["group_id"] for row in segments} == {"s1g0"}


def test_an_episode_over_several_versions_is_sure_only_of_the_one_at_its_start(run: Filled) -> None:
    by_name = {row["sample_id"]: row for row in run.rows("samples")}
    assert by_name["s3g0k0"]["version_source"] == "segment"
    assert by_name["s3g0k3"]["version_source"] == "admission"
    assert by_name["s3g0k3"]["versions"] == [{"version": 1, "start": 0, "end": by_name["s3g0k3"]["output_tokens"]}]


def test_deliveries_say_what_was_trained_and_why_the_rest_was_not(run: Filled) -> None:
    deliveries = {row["sample_id"]: row for row in run.rows("deliveries")}
    assert len(deliveries) == 18
    assert sum(row["outcome"] == "trained" for row in deliveries.values()) == 16
    assert deliveries["s2x"]["outcome"] == "filtered"
    assert deliveries["s3x"]["outcome"] == "dropped_stale"
    trained = deliveries["s2g1k3"]
    assert (trained["step"], trained["consumer_version"], trained["reward"]) == (2, 1, 0.0)
    assert all(row["queued_ns"] <= row["taken_ns"] for row in deliveries.values())


def test_a_step_that_a_resumed_run_repeats_is_trained_on_the_samples_of_its_last_attempt(tmp_path: Path) -> None:
    """The files are appended to. After five hours the run went on from step 1, which ended at 32.5 s.

    Two samples of the first attempt at step 2 were there by then, and were lost.
    """
    folder = tmp_path / "prime"
    shutil.copytree(FIXTURE, folder)
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    again = [
        {
            name: value + 18_000 if name == "time" else 1.01 * value if name.startswith("time/") else value
            for name, value in row.items()
        }
        for row in rows
        if row["step"] > 1
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in (*rows, *again)))
    for path in folder.glob("rollouts/step_[234]/train/*/traces.jsonl"):
        first = path.read_text().rstrip("\n") + "\n"
        path.write_text(first + first.replace("1780000", "1780018").replace('"id":"s', '"id":"r'))
    run = fill(tmp_path / "run", (folder, PRIME_RL))
    deliveries = run.rows("deliveries")
    trained = [row["step"] for row in deliveries if row["outcome"] == "trained"]
    assert [trained.count(step) for step in (1, 2, 3, 4)] == [4, 4, 4, 4]
    assert sorted(row["sample_id"] for row in deliveries if row["outcome"] == "abandoned") == ["s2g0k0", "s2g0k3"]
    assert {row["sample_id"] for row in deliveries} <= {row["sample_id"] for row in run.rows("samples")}


def test_the_configs_tell_gpus_batch_and_cap(run: Filled) -> None:
    config = json.loads((run.folder / "run.json").read_text())["config"]
    assert config["samples_per_step"] == 4
    assert config["group_size"] == 2
    assert config["max_staleness"] == 1
    assert json.loads((run.folder / "workers" / "sampler.json").read_text())["gpu_count"] == 4


def test_the_trainers_gpus_follow_from_its_throughput_where_no_config_tells_them(tmp_path: Path) -> None:
    shutil.copytree(FIXTURE, tmp_path / "prime")
    (tmp_path / "prime" / "rl.toml").unlink()
    bare = fill(tmp_path / "run", (tmp_path / "prime", PRIME_RL))
    assert json.loads((bare.folder / "workers" / "trainer.json").read_text())["gpu_count"] == 2
    assert any(
        note.startswith("No file states the number of sampler GPUs; 1 is assumed") for note in bare.imported.notes
    )


def test_a_broadcast_that_does_not_fit_into_the_step_lies_before_it(tmp_path: Path) -> None:
    phases = {"wait_for_batch": 4.0, "load_data": 1.0, "forward_backward": 5.0, "broadcast_weights": 2.0}
    run = imported(
        tmp_path,
        trainer_row(0, START_S + 12.0, step=10.0, **phases),
        trainer_row(1, START_S + 24.0, step=10.0, save_ckpt=0.0, **phases),
    )
    assert run.spans_s("trainer", START_S * NS) == [
        ("publish", 0.0, 2.0),
        ("wait", 2.0, 6.0),
        ("other", 6.0, 7.0),
        ("train_step", 7.0, 12.0),
        ("publish", 12.0, 14.0),
        ("wait", 14.0, 18.0),
        ("other", 18.0, 19.0),
        ("train_step", 19.0, 24.0),
    ]
    assert [row["version_in"] for row in run.rows("train_steps")] == [0, 1]


def test_recognition_needs_the_rows_of_a_trainer_or_an_orchestrator(tmp_path: Path) -> None:
    assert PRIME_RL.recognize(open_source(FIXTURE))
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "time": 3, "loss": 0.1}\n')
    assert not PRIME_RL.recognize(open_source(tmp_path))
    with pytest.raises(ImportFileError, match="file monitor"):
        fill(tmp_path / "run", (tmp_path, PRIME_RL))
