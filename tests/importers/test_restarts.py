"""Runs that were started again: their steps are read as those of one run, and the time in which it was down is not."""

import json
from datetime import UTC, datetime
from pathlib import Path
from shutil import copy

import pytest

from rlscope.errors import ImportFileError
from rlscope.importers.join import import_run
from rlscope.importers.options import import_options
from rlscope.trace.imported import Imported
from tests.importers.filling import asked

VERL = Path(__file__).parent / "fixtures" / "verl"
START_S = 1_760_000_000
SHARED = import_options(gpus="colocated=8")
SPANS = f"SELECT step, (start_ns / 1e9 - {START_S}), (end_ns / 1e9 - {START_S}) FROM train_steps ORDER BY ALL"


def step_lines(*rows: tuple[int, float, float]) -> str:
    """Verl's metrics: the number of each step, the second in which it ended, and the seconds it trained."""
    lines = [
        {
            "step": step,
            "_timestamp": START_S + end_s,
            "data": {"timing_s/step": train_s + 1, "timing_s/gen": 1, "timing_s/update_actor": train_s},
        }
        for step, end_s, train_s in rows
    ]
    return "".join(json.dumps(line) + "\n" for line in lines)


def metrics(folder: Path, *rows: tuple[int, float, float]) -> Path:
    path = folder / "metrics.jsonl"
    path.write_text(step_lines(*rows))
    return path


def steps(first: int, last: int, start_s: float) -> list[tuple[int, float, float]]:
    """Steps of 10 s; how long each of them trained tells it from another attempt at it."""
    return [(step, start_s + 10 * place, 8 + start_s / 1e6) for place, step in enumerate(range(first, last + 1), 1)]


def vllm_lines(at_s: range) -> str:
    """What an engine prints at these seconds."""
    stats = "Avg prompt throughput: 9.0 tokens/s, Avg generation throughput: 100.0 tokens/s"
    stats = f"[loggers.py:257] Engine 000: {stats}, Running: 8 reqs, Waiting: 0 reqs"
    stamps = (datetime.fromtimestamp(START_S + each, UTC) for each in at_s)
    return "".join(f"INFO {stamp:%m-%d %H:%M:%S} {stats}\n" for stamp in stamps)


def left_out(imported: Imported) -> list[str]:
    return [note for note in imported.notes if "left out" in note]


def test_the_steps_that_are_repeated_and_the_time_until_then_are_left_out(tmp_path: Path) -> None:
    """The run fell back from step 5 to its checkpoint after step 2, 300 s later, and did not get to step 5 again."""
    log = metrics(tmp_path, (1, 10, 8), (2, 20, 8), (3, 30, 8), (4, 40, 8), (5, 50, 8), (3, 348, 7), (4, 359, 9))
    imported = import_run(log, tmp_path / "run", SHARED)
    assert asked(tmp_path / "run", SPANS) == [
        (1, 2.0, 10.0),
        (2, 12.0, 20.0),
        (3, 21.0, 28.0),
        (4, 30.0, 39.0),
    ]
    assert left_out(imported) == [
        "The run was started again between steps 2 and 3 of the trainer: 5 min 20 s are left out for all workers"
    ]


@pytest.mark.parametrize(
    ("period_s", "pause_s", "is_left_out"),
    [(10, 600, False), (10, 601, True), (100, 1000, False), (100, 1001, True)],
)
def test_a_pause_of_more_than_ten_minutes_and_ten_steps_is_left_out(
    tmp_path: Path, period_s: int, pause_s: int, is_left_out: bool
) -> None:
    rows = [(step, step * period_s + (pause_s if step > 3 else 0), period_s - 1) for step in range(1, 7)]
    imported = import_run(metrics(tmp_path, *rows), tmp_path / "run", SHARED)
    ((length_s,),) = asked(tmp_path / "run", "SELECT (stopped_ns - started_ns) / 1e9 FROM workers")
    assert length_s == 6 * period_s + (0 if is_left_out else pause_s)
    assert len(left_out(imported)) == is_left_out


def test_a_run_that_goes_on_keeps_its_times(tmp_path: Path) -> None:
    """A watch has evaluated them."""
    log = metrics(tmp_path, (1, 10, 8), (2, 20, 8), (2, 3600, 9), (3, 3610, 8))
    imported = import_run(log, tmp_path / "run", SHARED, is_growing=True)
    assert any(note.startswith("1 duplicate trainer step in the file") for note in imported.notes)
    assert asked(tmp_path / "run", SPANS)[1:] == [(2, 3591.0, 3600.0), (3, 3602.0, 3610.0)]


def test_the_tensorboard_files_of_one_folder_are_one_run(tmp_path: Path) -> None:
    """The fixture, cut behind the last event of step 30."""
    whole = (VERL / "events.out.tfevents.1").read_bytes()
    import_run(VERL / "events.out.tfevents.1", tmp_path / "whole")
    cut = record_that_begins_step(31, whole)
    folder = tmp_path / "log"
    folder.mkdir()
    (folder / "events.out.tfevents.1.host").write_bytes(whole[:cut])
    (folder / "events.out.tfevents.2.host").write_bytes(whole[cut:])
    imported = import_run(folder, tmp_path / "run")
    steps = "SELECT step, start_ns, end_ns, tokens FROM train_steps ORDER BY ALL"
    assert asked(tmp_path / "run", steps) == asked(tmp_path / "whole", steps)
    assert (
        "2 files are read as one run that was started again: log/events.out.tfevents.1.host, "
        "log/events.out.tfevents.2.host"
    ) in imported.notes


def test_the_wandb_files_of_one_run_id_are_one_run(tmp_path: Path) -> None:
    """The second start wrote the same steps as the first one, so nothing is repeated."""
    for start in ("offline-run-20251009_085310-a1b2", "offline-run-20251009_095310-a1b2"):
        (tmp_path / "wandb" / start).mkdir(parents=True)
        copy(VERL / "run.wandb", tmp_path / "wandb" / start / "run-a1b2.wandb")
    import_run(tmp_path / "wandb", tmp_path / "run")
    assert asked(tmp_path / "run", "SELECT count(*), max(step) FROM train_steps") == [(60, 60)]


def test_the_trainer_states_of_all_checkpoints_are_one_run(tmp_path: Path) -> None:
    """The last one has the rows of the others. 20 comes after 100 in the order of names."""
    whole = json.loads((VERL.parent / "trl" / "trainer_state.json").read_text())
    for step, rows in ((20, 11), (100, 21)):
        checkpoint = tmp_path / "out" / f"checkpoint-{step}"
        checkpoint.mkdir(parents=True)
        history = whole["log_history"][:rows]
        (checkpoint / "trainer_state.json").write_text(json.dumps(whole | {"log_history": history}))
    imported = import_run(tmp_path / "out", tmp_path / "run")
    assert asked(tmp_path / "run", "SELECT count(*) FROM train_steps") == [(20,)]
    assert "checkpoint-100" in imported.files[0].name


def test_the_engines_logs_are_read_by_the_clock_of_the_steps(tmp_path: Path) -> None:
    """The run fell back from step 40 to its checkpoint after step 35, five hours later: 350 s and 450 s are left."""
    again_s = 5 * 3600
    log = metrics(tmp_path, *steps(1, 40, 0), *steps(36, 80, again_s))
    for name, from_s, to_s in (("first", 10, 410), ("second", again_s - 30, again_s + 450)):
        (tmp_path / f"{name}.log").write_text(vllm_lines(range(from_s, to_s + 1, 10)))
    given = import_options(gpus="trainer=2,sampler=4", engine_logs=[str(tmp_path / "*.log")])
    import_run(log, tmp_path / "run", given)
    first_s, last_s = f"min(start_ns) / 1e9 - {START_S}", f"max(end_ns) / 1e9 - {START_S}"
    served = asked(tmp_path / "run", f"SELECT worker_id, {first_s}, {last_s} FROM engine_steps GROUP BY ALL ORDER BY 1")
    assert served == [
        ("first", pytest.approx(0, abs=11), pytest.approx(350, abs=1)),
        ("second", pytest.approx(350, abs=1), pytest.approx(800, abs=1)),
    ]


def test_engines_of_two_starts_do_not_fit_steps_without_times(tmp_path: Path) -> None:
    """The logs `a` and `b` begin 5 s apart and are of one start; `c` is not."""
    log = metrics(tmp_path, *steps(1, 40, 0))
    log.write_text(log.read_text().replace('"_timestamp"', '"another"'))
    for name, from_s in (("a", 10), ("b", 15), ("c", 18_000)):
        (tmp_path / f"{name}.log").write_text(vllm_lines(range(from_s, from_s + 300, 10)))
    of_one, of_both = (
        import_options(gpus="trainer=2,sampler=4", engine_logs=[str(tmp_path / names)])
        for names in ("[ab].log", "*.log")
    )
    import_run(log, tmp_path / "run", of_one)
    ends_s = "SELECT max(end_ns) / 1e9 FROM engine_steps GROUP BY worker_id ORDER BY worker_id"
    (first_s,), (second_s,) = asked(tmp_path / "run", ends_s)
    assert second_s - first_s == 5.0
    with pytest.raises(ImportFileError, match="found a log of another time than that of the engines before"):
        import_run(log, tmp_path / "both", of_both)


@pytest.mark.parametrize(("zone_h", "is_refused"), [(0, False), (2, True)])
def test_a_log_in_local_time_that_fits_several_attempts_needs_its_zone(
    tmp_path: Path, zone_h: int, is_refused: bool
) -> None:
    log = metrics(tmp_path, *steps(1, 40, 0), *steps(36, 80, 5 * 3600))
    engine = tmp_path / "engine.log"
    engine.write_text(vllm_lines(range(zone_h * 3600 + 10, zone_h * 3600 + 301, 10)))
    given = import_options(gpus="trainer=2,sampler=4", engine_logs=[str(engine)])
    if is_refused:
        with pytest.raises(ImportFileError, match="fit the run in several time zones"):
            import_run(log, tmp_path / "run", given)
    else:
        imported = import_run(log, tmp_path / "run", given)
        assert "The time zone of engine.log is ambiguous; UTC is assumed" in " ".join(imported.notes)


def record_that_begins_step(step: int, events: bytes) -> int:
    """Return where the first event of a step begins: length and checksum, the time as a double, then the step."""
    at = 0
    while events[at + 21 : at + 23] != bytes([0x10, step]):
        at += 16 + int.from_bytes(events[at : at + 8], "little")
    return at
