"""NeMo-RL's train_data files: lengths and rewards as recorded, times of their step, versions where they are certain."""

import json
from pathlib import Path
from typing import Any

import pytest

from rlscope.errors import ImportFileError
from rlscope.frameworks import framework
from rlscope.importers.importer import open_source
from rlscope.importers.nemo_rl_samples import NEMO_RL_SAMPLES
from rlscope.importers.step_rows import step_importer
from rlscope.trace.imported import Certainty
from tests.importers.filling import NEMO_RL_CONSOLE, NS, Filled, fill
from tests.importers.nemo_console import ASYNC_CONFIG, CONFIG, block
from tests.importers.test_nemo_rl import SYNC

METRICS = step_importer(framework("nemo-rl"))


def record(index: int, total: int, sampled: int, reward: float = 1.0) -> dict[str, Any]:
    """A row as `log_batched_dict_as_jsonl` writes it: every key a batch of one."""
    return {
        "input_lengths": [total],
        "token_loss_mask": [[0] * (total - sampled) + [1] * sampled],
        "rewards": [reward],
        "idx": index,
    }


def imported(tmp_path: Path, console: str, **steps: list[Any]) -> Filled:
    log, folder = tmp_path / "driver.log", tmp_path / "exp_001"
    log.write_text(console)
    folder.mkdir()
    for name, rows in steps.items():
        lines = (row if isinstance(row, str) else json.dumps(row) for row in rows)
        (folder / f"train_data_{name}.jsonl").write_text("".join(f"{line}\n" for line in lines))
    return fill(tmp_path / "run", (log, NEMO_RL_CONSOLE), (folder, NEMO_RL_SAMPLES), origin_ns=1_000 * NS)


def test_samples_have_their_lengths_and_the_times_of_their_step(tmp_path: Path) -> None:
    rows = [record(0, 120, 100), record(16, 90, 40, reward=0.0)]
    run = imported(tmp_path, CONFIG + block(1, 40.0, SYNC), step1=rows)
    samples = run.rows("samples")
    assert [(row["prompt_tokens"], row["output_tokens"], row["group_id"]) for row in samples] == [
        (20, 100, "1-0"),
        (50, 40, "1-1"),
    ]
    # Data, weights and generation take 35.25 s; training begins at 37 s.
    assert {(row["finished_ns"] / NS - 1_000) for row in samples} == {35.25}
    deliveries = run.rows("deliveries")
    assert [(row["taken_ns"] / NS - 1_000, row["step"], row["reward"]) for row in deliveries] == [
        (37.0, 1, 1.0),
        (37.0, 1, 0.0),
    ]
    assert run.imported.tables["samples"].certainty is Certainty.INFERRED


def test_a_synchronous_step_is_sampled_by_the_weights_before_it(tmp_path: Path) -> None:
    run = imported(tmp_path, CONFIG + block(3, 40.0, SYNC), step3=[record(0, 120, 100)])
    assert run.rows("samples")[0]["versions"] == [{"version": 1, "start": 0, "end": 100}]
    assert run.rows("deliveries")[0]["consumer_version"] == 1


def test_the_weights_that_sampled_an_asynchronous_step_are_unknown(tmp_path: Path) -> None:
    phases = {"exposed_generation": 12.0, "policy_training": 6.0, "weight_sync": 2.0}
    run = imported(tmp_path, ASYNC_CONFIG + block(1, 20.0, phases), step1=[record(0, 120, 100)])
    assert run.rows("samples")[0]["versions"] == []
    assert run.rows("samples")[0]["worker_id"] == "generation"


def test_metrics_of_the_run_place_its_samples_as_well_as_its_console(tmp_path: Path) -> None:
    seconds = {"generation": 12.0, "policy_training": 8.0, "total_step_time": 20.0}
    (tmp_path / "m.jsonl").write_text(
        json.dumps({"step": 1, **{f"timing/train/{name}": value for name, value in seconds.items()}}) + "\n"
    )
    (tmp_path / "train_data_step1.jsonl").write_text(json.dumps(record(0, 120, 100)) + "\n")
    files = (tmp_path / "m.jsonl", METRICS), (tmp_path / "train_data_step1.jsonl", NEMO_RL_SAMPLES)
    (delivery,) = fill(tmp_path / "run", *files, origin_ns=1_000 * NS).rows("deliveries")
    assert (delivery["worker_id"], delivery["taken_ns"]) == ("trainer", 1_012 * NS)


def test_rows_without_lengths_and_steps_that_the_console_lacks_are_counted(tmp_path: Path) -> None:
    rows = [record(0, 120, 100), {"idx": 1}, "{", record(2, 10, 11)]
    run = imported(tmp_path, CONFIG + block(1, 40.0, SYNC), step1=rows, step9=[record(0, 10, 5)])
    assert len(run.rows("samples")) == 1
    assert sum(file.bad_lines for file in run.imported.files) == 3
    assert any("1 sample files left out" in note for note in run.imported.notes)


def test_samples_alone_are_an_error_that_asks_for_the_console(tmp_path: Path) -> None:
    file = tmp_path / "train_data_step1.jsonl"
    file.write_text(json.dumps(record(0, 10, 5)) + "\n")
    assert NEMO_RL_SAMPLES.recognize(open_source(file))
    assert NEMO_RL_SAMPLES.recognize(open_source(tmp_path))
    with pytest.raises(ImportFileError, match="--with"):
        fill(tmp_path / "run", (file, NEMO_RL_SAMPLES))


def test_a_second_file_of_a_step_is_refused(tmp_path: Path) -> None:
    """Each start of a run writes into a folder of its own."""
    log, folders = tmp_path / "driver.log", [tmp_path / name for name in ("exp_001", "exp_002")]
    log.write_text(CONFIG + block(1, 40.0, SYNC))
    for folder in folders:
        folder.mkdir()
        (folder / "train_data_step1.jsonl").write_text(json.dumps(record(0, 120, 100)) + "\n")
    with pytest.raises(ImportFileError, match=r"a second train_data_step1\.jsonl, as of a run that was started again"):
        fill(tmp_path / "run", (log, NEMO_RL_CONSOLE), *((folder, NEMO_RL_SAMPLES) for folder in folders))
