"""miles' dashboard: phases by rank, engines as scraped, and turns with the lengths of the column files."""

import re
import shutil
from pathlib import Path

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from rlscope.errors import ImportFileError
from rlscope.importers.importer import open_source
from rlscope.importers.miles import MILES_DASHBOARD
from rlscope.trace.imported import Certainty
from tests.importers.filling import NS, Filled, asked, fill, ledger_s

FIXTURE = Path(__file__).parent / "fixtures" / "miles"
START_NS = 1_780_000_000 * NS


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Filled:
    return fill(tmp_path_factory.mktemp("miles") / "run", (FIXTURE, MILES_DASHBOARD))


def test_each_rank_has_its_own_phases(run: Filled) -> None:
    assert run.spans_s("trainer-1", START_NS)[:5] == [
        ("publish", -4.0, -1.0),
        ("wait", 0.0, 30.0),
        ("logprobs", 30.0, 34.0),
        ("train_step", 34.0, 51.0),
        ("publish", 52.0, 55.0),
    ]
    assert run.imported.tables["train_steps"].certainty is Certainty.RECORDED


def test_a_phase_that_was_written_while_it_ran_counts_once(run: Filled) -> None:
    waits = [row for row in run.rows("activities") if row["worker_id"] == "trainer-0" and row["activity"] == "wait"]
    assert len(waits) == 2


def test_steps_have_the_numbers_of_the_metrics_once(run: Filled) -> None:
    steps = run.rows("train_steps")
    assert [row["tokens"] for row in steps if row["worker_id"] == "trainer-0"] == [1_600, 1_600]
    first = next(row for row in steps if row["worker_id"] == "trainer-0")
    assert (first["step"], first["version_in"], first["version_out"], first["reward_mean"]) == (0, 1, 2, 0.5)


def test_engines_generate_as_scraped_and_have_no_requests_between(run: Filled) -> None:
    states = ledger_s(run.folder)
    # Readings every 2 s: engine-0 has requests up to that at 28 s, so until 30 s; engine-1 until 20 s.
    assert states["engine-0"]["generating"] == pytest.approx(2 * 30.0, abs=4.0)
    assert states["engine-1"]["generating"] == pytest.approx(2 * 20.0, abs=4.0)
    assert states["engine-0"]["applying_weights"] == pytest.approx(9.0, abs=0.1)
    assert states["engine-1"]["no_requests"] > states["engine-0"]["no_requests"]


def test_turns_are_segments_with_the_tokens_that_the_policy_sampled(run: Filled) -> None:
    turns = [row for row in run.rows("samples") if row["sample_id"] == "4"]
    assert [(row["segment"], row["prompt_tokens"], row["output_tokens"]) for row in turns] == [(0, 20, 50), (1, 70, 30)]
    assert turns[1]["versions"] == [{"version": 2, "start": 0, "end": 30}]
    assert (turns[0]["submitted_ns"] - START_NS) / NS == 61.0


def test_a_rollouts_samples_are_trained_in_its_step(run: Filled) -> None:
    assert {(row["sample_id"], row["step"]) for row in run.rows("deliveries")} == {(str(n), n // 4) for n in range(8)}
    assert run.imported.tables["deliveries"].certainty is Certainty.INFERRED


def test_without_the_columns_turns_have_no_lengths_and_that_is_said(tmp_path: Path) -> None:
    shutil.copytree(FIXTURE / "dashboard", tmp_path / "dashboard")
    run = fill(tmp_path / "run", (tmp_path, MILES_DASHBOARD))
    assert run.rows("samples") == []
    assert any("12 turns have no lengths" in note for note in run.imported.notes)


def test_colocated_ranks_generate_while_the_rollout_manager_does(tmp_path: Path) -> None:
    shutil.copytree(FIXTURE, tmp_path / "dump")
    meta = tmp_path / "dump" / "dashboard" / "meta.json"
    meta.write_text(meta.read_text().replace('"colocate": false', '"colocate": true'))
    run = fill(tmp_path / "run", (tmp_path / "dump", MILES_DASHBOARD))
    states = ledger_s(run.folder)
    assert states.keys() == {"trainer-0", "trainer-1"}
    assert states["trainer-0"]["generating"] == pytest.approx(60.0)


@pytest.mark.parametrize(
    ("missing", "samplers"),
    [
        ((), {"engine-0": 1, "engine-1": 1, "engines": 0, "sampler": 14}),
        (("topology.jsonl",), {"http-10.0.0.1-15000": 8, "http-10.0.0.1-15002": 8, "engines": 0}),
        (("topology.jsonl", "engine_series/20260528_20.jsonl"), {"engines": 16}),
    ],
)
def test_gpus_that_are_stated_count(tmp_path: Path, missing: tuple[str, ...], samplers: dict[str, int]) -> None:
    shutil.copytree(FIXTURE, tmp_path / "dump")
    for name in missing:
        (tmp_path / "dump/dashboard" / name).unlink()
    run = fill(tmp_path / "run", (tmp_path / "dump", MILES_DASHBOARD), gpus={"trainer": 8, "sampler": 16})
    gpus = dict(asked(run.folder, "SELECT worker_id, gpu_count FROM workers"))
    assert gpus == {"trainer-0": 4, "trainer-1": 4} | samplers


@pytest.mark.parametrize("first_step", [2, 1])
def test_a_resumed_run_goes_on_from_its_checkpoint_with_steps_and_versions(tmp_path: Path, first_step: int) -> None:
    """The same two rollouts again, five hours later, with samples of their own; versions are counted anew."""
    folder = tmp_path / "dump"
    shutil.copytree(FIXTURE, folder)
    for path in (folder / "dashboard").rglob("*.jsonl"):
        text = re.sub(r"\b17[78]\d{7}\.\d+", lambda found: str(float(found[0]) + 18_000), path.read_text())
        text = re.sub(r'"sample_index":(\d+)', lambda found: f'"sample_index":{8 + int(found[1])}', text)
        text = re.sub(r'"step":(\d+)', lambda found: f'"step":{first_step + int(found[1])}', text)
        path.write_text(path.read_text() + text)
    for number in (1, 0):
        columns = pq.read_table(FIXTURE / "dashboard_columns" / f"rollout_{number}.parquet")
        place, index = columns.schema.get_field_index("sample_index"), pc.add(columns["sample_index"], 8)
        path = folder / "dashboard_columns" / f"rollout_{first_step + number}.parquet"
        pq.write_table(columns.set_column(place, "sample_index", index), path)
    run = fill(tmp_path / "run", (folder, MILES_DASHBOARD))
    steps = [row for row in run.rows("train_steps") if row["worker_id"] == "trainer-0"]
    assert [row["step"] for row in steps] == [*range(first_step), first_step, first_step + 1]
    deliveries = run.rows("deliveries")
    assert [row["step"] for row in deliveries] == [step for step in range(first_step + 2) for _ in range(4)]
    consumed = {row["sample_id"]: row["consumer_version"] for row in deliveries}
    firsts = [row for row in run.rows("samples") if row["sample_id"] in ("0", "8")]
    # The first sample of each start is generated and trained with its first version.
    assert {(row["versions"][0]["version"], consumed[row["sample_id"]]) for row in firsts} == {(1, 1), (4, 4)}
    assert steps[-1]["end_ns"] - steps[0]["start_ns"] < 300 * NS


def test_a_folder_without_telemetry_is_an_error(tmp_path: Path) -> None:
    assert not MILES_DASHBOARD.recognize(open_source(tmp_path))
    assert MILES_DASHBOARD.recognize(open_source(FIXTURE))
    assert MILES_DASHBOARD.recognize(open_source(FIXTURE / "dashboard"))
    with pytest.raises(ImportFileError, match="--dump-details"):
        fill(tmp_path / "run", (tmp_path, MILES_DASHBOARD))
