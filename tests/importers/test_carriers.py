"""The forms of files: each carrier reads what the real writer wrote, any part of it, and any damage to it."""

import csv
import json
import re
import sqlite3
import struct
import zlib
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from shutil import copy
from typing import IO

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rlscope.errors import ImportFileError
from rlscope.importers import steps
from rlscope.importers.importer import open_source
from rlscope.importers.join import import_run
from rlscope.importers.options import import_options
from rlscope.importers.steps import carrier_of, names_in
from rlscope.reports.text.origin import source_words
from rlscope.trace.store import open_run
from tests.importers.filling import asked, worker_s

VERL = Path(__file__).parent / "fixtures" / "verl"
FILES = {
    "console.log": "console",
    "metrics.jsonl": "jsonl",
    "events.out.tfevents.1": "tensorboard",
    "run.wandb": "wandb",
}
RECORDED = json.loads((VERL / "recorded.json").read_text())
OWN_TIMES = ("events.out.tfevents.1", "run.wandb")


def only(folder: Path, sql: str) -> float:
    """The only value that a SELECT finds."""
    ((value,),) = asked(folder, sql)
    return value


def trainer_seconds(folder: Path) -> dict[str, float]:
    """Seconds of the trainer by what it did, and its whole time."""
    whole = "SELECT (stopped_ns - started_ns) / 1e9 FROM workers WHERE worker_id = 'trainer'"
    return worker_s(folder) | {"step_time": only(folder, whole)}


@pytest.mark.parametrize("name", FILES)
def test_what_the_log_shows_agrees_with_what_the_hooks_recorded(tmp_path: Path, name: str) -> None:
    """The bound of docs/importers.md: each phase within 0.5% of the time that the steps took."""
    # JSON lines and TensorBoard hold no config, which says that the samplers have a GPU of their own.
    imported = import_run(VERL / name, tmp_path / "run", import_options(gpus="trainer=1,sampler=1"))
    found = trainer_seconds(tmp_path / "run")
    found["wait samples"] = found["samples"]
    for phase in ("wait samples", "train", "publish", "eval", "checkpoint", "step_time"):
        assert found[phase] == pytest.approx(RECORDED[phase], abs=0.005 * RECORDED["step_time"]), phase
    assert only(tmp_path / "run", "SELECT sum(tokens) FROM train_steps") == RECORDED["tokens"]
    assert imported.carriers == (FILES[name],)
    assert imported.clock == ("wall" if name in OWN_TIMES else "relative")


@pytest.mark.parametrize("name", OWN_TIMES)
def test_a_file_with_times_ends_where_the_hooks_saw_the_run_end(tmp_path: Path, name: str) -> None:
    import_run(VERL / name, tmp_path / "run")
    end_ns = only(tmp_path / "run", "SELECT max(stopped_ns) FROM workers")
    assert 0 <= (end_ns - RECORDED["last_step_end_ns"]) / 1e9 < 1.0


TRL_STATE = VERL.parent / "trl" / "trainer_state.json"


def test_what_trl_s_trainer_state_says_agrees_with_what_the_hooks_recorded(tmp_path: Path) -> None:
    """The bound of docs/importers.md: 3%. The first step has no perf/step_s, and counts."""
    recorded = json.loads((TRL_STATE.parent / "recorded.json").read_text())
    imported = import_run(TRL_STATE, tmp_path / "run")
    assert (imported.clock, imported.carriers) == ("relative", ("trainer_state",))
    assert source_words(imported) == "imported from trl's JSON file trainer_state.json"
    found, names = trainer_seconds(tmp_path / "run"), {"waiting_for_samples": "samples", "train": "train"}
    for state, name in {**names, "publishing_weights": "publish"}.items():
        assert found[name] == pytest.approx(recorded[state], abs=0.03 * found["step_time"]), state
    steps = asked(tmp_path / "run", "SELECT count(*), sum(samples), min(tokens) > 0 FROM train_steps")
    cut = asked(tmp_path / "run", "SELECT truncated_ratio FROM train_steps ORDER BY step LIMIT 2")
    assert steps == [(recorded["steps"], 16 * recorded["steps"], True)]
    assert cut == [(0.8857142857142857,), (1.0,)]


def test_a_trainer_state_is_known_by_its_first_rows_under_any_name_however_long_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steps, "FURTHER_BYTES", TRL_STATE.stat().st_size)
    copy(TRL_STATE, tmp_path / "checkpoint-30.json")
    assert import_run(tmp_path / "checkpoint-30.json", tmp_path / "run").carriers == ("trainer_state",)


def test_the_settings_of_the_run_are_read_where_the_file_holds_them(tmp_path: Path) -> None:
    for name in ("console.log", "run.wandb"):
        import_run(VERL / name, tmp_path / name)
        with open_run(tmp_path / name) as run:
            config = run.config
        assert (config.samples_per_step, config.group_size, config.max_output_tokens) == (32, 8, 96)
        assert (config.max_running, config.gpus_per_engine, config.total_steps) == (8, 1, 60)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("share", [0.0, 0.001, 0.04, 0.5, 0.999])
def test_any_part_of_a_file_imports_or_holds_no_step(tmp_path: Path, name: str, share: float) -> None:
    whole = (VERL / name).read_bytes()
    (tmp_path / name).write_bytes(whole[: int(share * len(whole))])
    try:
        import_run(tmp_path / name, tmp_path / "run")
    except ImportFileError:
        assert share < 0.1
        return
    steps = only(tmp_path / "run", "SELECT count(*) FROM train_steps")
    assert 60 * share - 20 <= steps <= 60 * share + 1


@pytest.mark.parametrize("name", FILES)
def test_damaged_bytes_cost_what_they_hit_and_nothing_else(tmp_path: Path, name: str) -> None:
    damaged = bytearray((VERL / name).read_bytes())
    middle = len(damaged) // 2
    damaged[middle : middle + 64] = b"\xff" * 64
    (tmp_path / name).write_bytes(damaged)
    imported = import_run(tmp_path / name, tmp_path / "run")
    steps = only(tmp_path / "run", "SELECT count(*) FROM train_steps")
    assert steps >= (25 if name in OWN_TIMES else 59)
    assert imported.files[0].bytes <= len(damaged)


def test_a_form_is_told_by_its_content_whatever_the_name(tmp_path: Path) -> None:
    copy(VERL / "run.wandb", tmp_path / "renamed.log")
    carrier = carrier_of(open_source(tmp_path / "renamed.log"))
    assert carrier is not None and carrier.name == "wandb"


def rows_of_jsonl() -> list[tuple[int, dict[str, float]]]:
    rows = [json.loads(line) for line in (VERL / "metrics.jsonl").read_text().splitlines()]
    return [(row["step"], row["data"]) for row in rows]


def csv_of_wandb(path: Path) -> None:
    """Tabs in a .tsv file."""
    names = sorted({name for _, data in rows_of_jsonl() for name in data})
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, ["_step", "_timestamp", *names], delimiter="\t" if path.suffix == ".tsv" else ",")
        writer.writeheader()
        for step, data in rows_of_jsonl():
            writer.writerow({"_step": step, "_timestamp": 1.7e9 + 10 * step, **data})


def csv_of_a_spreadsheet(path: Path) -> None:
    """As Excel saves it where a comma stands before decimals."""
    csv_of_wandb(path)
    path.write_text("\ufeff" + path.read_text().replace(",", ";").replace(".", ","), encoding="utf-8")


def history_of_wandb(path: Path) -> None:
    """What scripts save of `run.scan_history()`."""
    rows = [{"_step": step, "_timestamp": 1.7e9 + 10 * step, **data} for step, data in rows_of_jsonl()]
    path.write_text(json.dumps(rows, indent=2))


def database_of_mlflow(path: Path) -> None:
    """A row a value, times in milliseconds; the run that was written to last is read."""
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE metrics (key, value, timestamp, step, run_uuid)")
        for step, data in rows_of_jsonl():
            stamped = int(1.7e12) + 10_000 * step
            values = [(name, value, stamped, step, "new") for name, value in data.items()]
            old = [(name, 1000.0, stamped - 10**9, step, "old") for name in data]
            connection.executemany("INSERT INTO metrics VALUES (?, ?, ?, ?, ?)", [*values, *old])


def write_record(file: IO[bytes], data: bytes) -> None:
    """Write a record in parts that fit the blocks, each with its checksum, length and kind."""
    left = data
    while left:
        room = 32768 - file.tell() % 32768 - 7
        part, rest = left[:room], left[room:]
        kind = {(True, True): 1, (True, False): 2, (False, False): 3, (False, True): 4}[left == data, not rest]
        file.write(struct.pack("<IHB", zlib.crc32(bytes((kind,)) + part), len(part), kind) + part)
        left = rest


def backup_of_swanlab(path: Path) -> None:
    """Blocks of records as W&B's, each a JSON object; what the console printed may be longer than a block."""
    with path.open("wb") as file:
        file.write(b":SWL\xd6\xe1\x01")
        write_record(file, json.dumps({"model_type": "Log", "data": {"message": "x" * 40_000}}).encode())
        for step, data in rows_of_jsonl():
            stamp = f"2026-01-01T{step // 60:02}:{step % 60:02}:00.5+00:00"
            for name, value in data.items():
                scalar = {"key": name, "step": step, "metric": {"data": value, "create_time": stamp}}
                if 32768 - file.tell() % 32768 < 300:
                    file.write(bytes(32768 - file.tell() % 32768))
                write_record(file, json.dumps({"model_type": "Scalar", "data": scalar}).encode() + b"\n")


def database_of_trackio(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE metrics (id, timestamp, run_name, step, metrics)")
        for step, data in rows_of_jsonl():
            stamp = f"2026-01-01T{step // 60:02}:{step % 60:02}:00+00:00"
            connection.execute("INSERT INTO metrics VALUES (?, ?, ?, ?, ?)", (step, stamp, "a", step, json.dumps(data)))


def parquet_of_trackio(path: Path) -> None:
    """The run that was written to last is read."""
    stamped = [(f"2026-01-01T{step // 60:02}:{step % 60:02}:00", step, data) for step, data in rows_of_jsonl()]
    named: list[dict[str, object]] = [
        {"timestamp": stamp, "run_name": run, "step": step, **{name: value * factor for name, value in data.items()}}
        for run, factor in (("old", 10.0), ("new", 1.0))
        for stamp, step, data in stamped
    ]
    names = dict.fromkeys(name for row in named for name in row)
    pq.write_table(pa.table({name: [row.get(name) for row in named] for name in names}), path)


def columns_of_pandas(path: Path) -> None:
    """What `to_json` writes of `run.history()`."""
    rows = [{"_step": step, "_timestamp": 1.7e9 + 10 * step, **data} for step, data in rows_of_jsonl()]
    names = dict.fromkeys(name for row in rows for name in row)
    path.write_text(json.dumps({name: {str(at): row.get(name) for at, row in enumerate(rows)} for name in names}))


PARAMS = {"trainer/n_gpus_per_node": "6", "trainer/nnodes": "1", "rollout/n_gpus_per_node": "2", "rollout/nnodes": "1"}


@pytest.mark.parametrize("name", ["mlflow.db", "mlruns"])
def test_the_settings_of_mlflow_s_run_are_its_params(tmp_path: Path, name: str) -> None:
    if name == "mlflow.db":
        database_of_mlflow(tmp_path / name)
        with closing(sqlite3.connect(tmp_path / name)) as connection, connection:
            connection.execute("CREATE TABLE params (key, value, run_uuid)")
            connection.executemany("INSERT INTO params VALUES (?, ?, 'new')", PARAMS.items())
            connection.execute("INSERT INTO params VALUES ('trainer/nnodes', '9', 'old')")
    else:
        files_of_mlflow(tmp_path / name)
        for key, value in PARAMS.items():
            file = tmp_path / name / "0" / "5c1d" / "params" / key
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(value)
    import_run(tmp_path / name, tmp_path / "run")
    assert asked(tmp_path / "run", "SELECT role, gpu_count FROM workers ORDER BY 1") == [("sampler", 2), ("trainer", 6)]


def files_of_mlflow(path: Path) -> None:
    """A file for each metric, with a line a value; `mlruns` has one more for the experiment."""
    run = path / "0" / "5c1d"
    for step, data in rows_of_jsonl():
        for name, value in data.items():
            (run / "metrics" / name).parent.mkdir(parents=True, exist_ok=True)
            with (run / "metrics" / name).open("a") as file:
                file.write(f"{int(1.7e12) + 10_000 * step} {value} {step}\n")
    (run / "meta.yaml").write_text("lifecycle_stage: active\nrun_id: 5c1d\n")
    (run.parent / "meta.yaml").write_text("experiment_id: '0'\n")


def lines_with(stamp: Callable[[int], object]) -> Callable[[Path], None]:
    """JSON lines with a time of some form."""

    def write(path: Path) -> None:
        path.write_text("".join(f"{json.dumps({'step': n, 'timestamp': stamp(n), **d})}\n" for n, d in rows_of_jsonl()))

    return write


def csv_with_texts(path: Path) -> None:
    csv_of_wandb(path)
    path.write_text(re.sub(r"1700000(\d\d)0\.0", r"2026-01-01 00:\1:00Z", path.read_text()))


@pytest.mark.parametrize(
    ("write", "name", "carrier"),
    [
        (csv_of_wandb, "export.csv", "csv"),
        (csv_of_wandb, "export.tsv", "csv"),
        (csv_of_a_spreadsheet, "export.csv", "csv"),
        (history_of_wandb, "history.json", "trainer_state"),
        (database_of_mlflow, "mlflow.db", "sqlite"),
        (backup_of_swanlab, "backup.swanlab", "swanlab"),
        (database_of_trackio, "trackio.db", "sqlite"),
        (parquet_of_trackio, "trackio.parquet", "parquet"),
        (columns_of_pandas, "history.json", "trainer_state"),
        (files_of_mlflow, "mlruns", "mlflow"),
        (lines_with(lambda step: int(1.7e12) + 10_000 * step), "milliseconds.jsonl", "jsonl"),
        (lines_with(lambda step: f"2026-01-01T00:{step:02}:00+00:00"), "texts.jsonl", "jsonl"),
        (csv_with_texts, "texts.csv", "csv"),
    ],
)
def test_what_a_tracker_exports_has_the_times_of_the_run(
    tmp_path: Path, write: Callable[[Path], None], name: str, carrier: str
) -> None:
    write(tmp_path / name)
    imported = import_run(tmp_path / name, tmp_path / "run")
    assert (imported.carriers, imported.clock, imported.is_incomplete) == ((carrier,), "wall", False)
    assert trainer_seconds(tmp_path / "run")["train"] == pytest.approx(RECORDED["train"], rel=0.01)


def test_a_view_in_place_of_a_table_is_not_read_as_it_can_be_endless(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "mlflow.db")) as connection, connection:
        connection.execute("CREATE TABLE held (key, value, timestamp, step, run_uuid)")
        values = [(name, value, 1.7e12, step, "a") for step, data in rows_of_jsonl() for name, value in data.items()]
        connection.executemany("INSERT INTO held VALUES (?, ?, ?, ?, ?)", values)
        connection.execute("CREATE VIEW metrics AS SELECT * FROM held")
    with pytest.raises(ImportFileError, match=r"mlflow\.db: found no run;"):
        import_run(tmp_path / "mlflow.db", tmp_path / "run")


@pytest.mark.parametrize(
    "text", ["", "\n", "{}", '{"a": ', "[1, 2]", "PAR1", "\x00\x01", "a,b\n1,2\n", '{"step": 1e999}\n' * 3]
)
@pytest.mark.parametrize("name", ["a.log", "a.jsonl", "a.csv", "a.json", "trainer_state.json", "a.wandb", "a.db"])
def test_what_holds_no_metrics_is_an_error_that_names_the_file(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    assert names_in(open_source(tmp_path / name)) <= {"a", "b", "step"}
    with pytest.raises(ImportFileError, match=name.replace(".", r"\.")):
        import_run(tmp_path / name, tmp_path / "run")


def test_nothing_in_a_file_is_run(tmp_path: Path) -> None:
    calls = "{'loss': __import__('pathlib').Path('" + str(tmp_path / "made") + "').touch()}\n"
    (tmp_path / "a.log").write_text(calls + (VERL / "console.log").read_text())
    import_run(tmp_path / "a.log", tmp_path / "run")
    assert not (tmp_path / "made").exists()
