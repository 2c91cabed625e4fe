"""Engines that were recorded in a folder of their own are read with the trainer's log or metrics file."""

import json
import pprint
from pathlib import Path
from typing import Any

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


def metrics(path: Path) -> Path:
    """Ten steps of 10 s from START_NS on: each waits for 6 s and trains for 4 s."""
    rows = [{"step": step, **STEP, "_timestamp": START_NS / S + 10 * step} for step in range(1, 11)]
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


def test_a_folder_of_another_time_is_refused(tmp_path: Path) -> None:
    folder = engine_run(tmp_path / "engines", START_NS, 200, 260)
    with pytest.raises(ImportFileError, match="engines of before or after the run; expected engines that served"):
        imported(tmp_path, metrics(tmp_path / "m.jsonl"), folder)


def test_a_folder_without_samplers_is_refused(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "engines", [worker("t0", start_ns=START_NS)], train_steps=[train_row("t0", 0, 10)])
    with pytest.raises(ImportFileError, match="no sampler; expected the run folder of engines"):
        imported(tmp_path, metrics(tmp_path / "m.jsonl"), folder)


@pytest.mark.parametrize(
    ("options", "gpus", "note"),
    [
        ({"gpus": "trainer=8,sampler=1"}, {"engine-0": 1}, None),
        ({"gpus": "trainer=8,sampler=16"}, {"engine-0": 1, "sampler": 15}, "are of 1 of the 16 sampler GPUs"),
        ({"gpus": "trainer=8,sampler=16", "gpus_per_engine": 4}, {"engine-0": 4, "sampler": 12}, "are of 4 of the 16"),
        ({"gpus": "trainer=8,sampler=2", "gpus_per_engine": 4}, {"engine-0": 4}, "are of 4 GPUs, not of the 2 sampler"),
        ({"gpus": "trainer=8", "gpus_per_engine": 4}, {"engine-0": 4}, None),
    ],
)
def test_sampler_gpus_without_an_engine_log_count_as_time_in_no_state(
    tmp_path: Path, options: dict[str, Any], gpus: dict[str, int], note: str | None
) -> None:
    folder = engine_run(tmp_path / "engines", START_NS, 0, 100)
    given = import_options(phases=PHASES.replace("generate", "samples"), engine_logs=[str(folder)], **options)
    notes = import_run(metrics(tmp_path / "m.jsonl"), tmp_path / "run", given).notes
    said = [each for each in notes if each.startswith("The engine logs are")]
    assert len(said) == (note is not None) and all(note in each for each in said if note)
    ledger = ledger_s(tmp_path / "run")
    assert {name: sum(ledger[name].values()) for name in gpus} == pytest.approx({n: 100.0 * g for n, g in gpus.items()})
    assert ledger.get("sampler", {}).keys() <= {"unattributed"} and ledger.keys() == {"trainer", *gpus}


def test_an_engine_has_the_gpus_of_the_config_if_its_log_states_none(tmp_path: Path) -> None:
    rollout = {"n_gpus_per_node": 4, "nnodes": 1, "tensor_model_parallel_size": 2}
    config = {"actor_rollout_ref": {"rollout": rollout}, "trainer": {"n_gpus_per_node": 8, "nnodes": 1}}
    values = {"timing_s/gen": 6.0, "timing_s/update_actor": 4.0, "timing_s/step": 10.0}
    steps = (f"step:{n} - " + " - ".join(f"{name}:{value}" for name, value in values.items()) for n in range(1, 11))
    (tmp_path / "run.log").write_text(pprint.pformat(config, width=40) + "\n" + "".join(f"{each}\n" for each in steps))
    folder = engine_run(tmp_path / "engines", START_NS, 0, 100)
    import_run(tmp_path / "run.log", tmp_path / "run", import_options(engine_logs=[str(folder)]))
    ledger = ledger_s(tmp_path / "run")
    assert {name: sum(states.values()) for name, states in ledger.items()} == pytest.approx(
        {"trainer": 800.0, "engine-0": 200.0, "sampler": 200.0}
    )
