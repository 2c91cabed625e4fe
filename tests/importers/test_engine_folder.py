"""Engines that were recorded in a folder of their own are read with the trainer's log or metrics file."""

import json
from pathlib import Path

import pytest

from rlscope.errors import ImportFileError
from rlscope.importers.join import import_run
from rlscope.importers.options import import_options
from tests.importers.filling import ledger_s
from tests.trace_folder import engine_run, train_row, worker, write_run

S = 10**9
START_NS = 1_800_000_000 * S
PHASES = "step=time/total,generate=time/sampling,train=time/train_step"
STEP = {"time/total": 10.0, "time/sampling": 6.0, "time/train_step": 4.0}
SLIME = Path(__file__).parent / "fixtures" / "slime" / "job.log"


def metrics(path: Path, *, is_dated: bool = True) -> Path:
    """Ten steps of 10 s from START_NS on: each waits for 6 s and trains for 4 s."""
    rows = [
        {"step": step, **STEP, **({"_timestamp": START_NS / S + 10 * step} if is_dated else {})}
        for step in range(1, 11)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def imported(tmp_path: Path, file: Path, folder: Path) -> Path:
    phases = PHASES if file.suffix == ".jsonl" else None
    given = import_options(phases=phases, gpus="trainer=2,sampler=1", engine_logs=[str(folder)])
    import_run(file, tmp_path / "run", given)
    return tmp_path / "run"


def test_the_engines_are_samplers_of_the_run_with_their_own_times(tmp_path: Path) -> None:
    run = imported(tmp_path, metrics(tmp_path / "m.jsonl"), engine_run(tmp_path / "engines", START_NS, 0, 100))
    ledger = ledger_s(run)
    assert ledger["trainer"] == pytest.approx({"waiting_for_samples": 120.0, "train": 80.0})
    assert ledger["engine-0"] == pytest.approx({"generating": 50.0, "no_requests": 50.0})


def test_an_engine_that_serves_before_and_after_the_run_counts_while_it_goes_on(tmp_path: Path) -> None:
    run = imported(tmp_path, metrics(tmp_path / "m.jsonl"), engine_run(tmp_path / "engines", START_NS, -50, 200))
    assert sum(ledger_s(run)["engine-0"].values()) == pytest.approx(100.0)


def test_a_log_in_local_time_is_joined_by_the_time_zone_that_fits(tmp_path: Path) -> None:
    """The log of slime says 17:48 where the engine's clock says 15:48 UTC."""
    began_ns = 1_795_369_687 * S - 2 * 3600 * S
    run = imported(tmp_path, SLIME, engine_run(tmp_path / "engines", began_ns, 0, 60))
    assert 30.0 < sum(ledger_s(run)["engine-0"].values()) <= 60.0


def test_metrics_without_times_are_aligned_with_the_engines_at_their_starts_and_say_so(tmp_path: Path) -> None:
    file = metrics(tmp_path / "m.jsonl", is_dated=False)
    run = imported(tmp_path, file, engine_run(tmp_path / "engines", START_NS, 0, 100))
    assert sum(ledger_s(run)["engine-0"].values()) == pytest.approx(100.0)
    notes = json.loads((run / "run.json").read_text())["imported"]["notes"]
    (said,) = [each for each in notes if "share no clock" in each]
    assert said.startswith("engines and the run's steps share no clock. They are aligned at their starts")


@pytest.mark.parametrize(
    ("from_s", "to_s", "log", "message"),
    [
        (-(10**6), 60 - 10**6, SLIME, "local times that no time zone puts into the run"),
        (200, 260, None, "engines of before or after the run; expected engines that served"),
    ],
)
def test_a_folder_of_another_time_is_refused(
    tmp_path: Path, from_s: int, to_s: int, log: Path | None, message: str
) -> None:
    folder = engine_run(tmp_path / "engines", START_NS, from_s, to_s)
    with pytest.raises(ImportFileError, match=message):
        imported(tmp_path, log or metrics(tmp_path / "m.jsonl"), folder)


def test_a_folder_without_samplers_is_refused(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "engines", [worker("t0", start_ns=START_NS)], train_steps=[train_row("t0", 0, 10)])
    with pytest.raises(ImportFileError, match="no sampler; expected the run folder of engines"):
        imported(tmp_path, metrics(tmp_path / "m.jsonl"), folder)
