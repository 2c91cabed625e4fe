"""AReaL's dumps and sessions: times of one joined with the lengths and versions of the other."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from rlscope.errors import ImportFileError
from rlscope.importers.areal import AREAL_SESSIONS
from rlscope.importers.importer import open_source
from rlscope.trace.imported import Certainty
from tests.importers.filling import NS, Filled, fill, ledger_s

FIXTURE = Path(__file__).parent / "fixtures" / "areal"
START_NS = 1_780_000_000 * NS


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Filled:
    folder = tmp_path_factory.mktemp("areal") / "run"
    return fill(folder, (FIXTURE, AREAL_SESSIONS), gpus={"sampler": 2, "trainer": 2})


def session(**more: Any) -> dict[str, Any]:
    return {
        "task_id": 1,
        "session_id": 0,
        "rank": 0,
        "status": "accepted",
        "submit_ts": 1_780_000_000.0,
        "finalized_ts": 1_780_000_009.0,
        "phases": {"generate": [{"start_ts": 1_780_000_001.0, "end_ts": 1_780_000_005.0}]},
    } | more


def written(tmp_path: Path, sessions: list[Any], dump: list[dict[str, Any]] | None = None) -> Path:
    folder = tmp_path / "areal"
    folder.mkdir()
    lines = [line if isinstance(line, str) else json.dumps(line) for line in sessions]
    (folder / "sessions-r0.jsonl").write_text("".join(line + "\n" for line in lines))
    if dump is not None:
        (folder / "rollout" / "0").mkdir(parents=True)
        (folder / "rollout" / "0" / "1.jsonl").write_text("".join(json.dumps(row) + "\n" for row in dump))
    return folder


def test_a_session_has_the_lengths_of_the_sample_that_its_task_dumped(run: Filled) -> None:
    samples = {row["sample_id"]: row for row in run.rows("samples")}
    assert len(samples) == 12
    second = samples["0-1"]
    assert (second["prompt_tokens"], second["output_tokens"], second["group_id"]) == (50, 110, "0")
    times_s = [(second[name] - START_NS) / NS for name in ("submitted_ns", "started_ns", "finished_ns")]
    assert times_s == [1.0, 1.5, 9.0]
    assert second["env_wait_ns"] == 1_500_000_000
    assert run.imported.tables["samples"].certainty is Certainty.RECORDED


def test_versions_are_exact_where_each_range_is_dumped_and_else_those_at_the_start(run: Filled) -> None:
    samples = {row["sample_id"]: row for row in run.rows("samples")}

    def versions(name: str) -> tuple[str, list[tuple[int, int, int]]]:
        row = samples[name]
        return row["version_source"], [(run["version"], run["start"], run["end"]) for run in row["versions"]]

    assert versions("0-0") == ("segment", [(0, 0, 100)])
    assert versions("1-3") == ("admission", [(0, 0, 110)])
    assert versions("5-11") == ("segment", [(2, 0, 60), (3, 60, 110)])


def test_samplers_generate_while_a_session_does_and_else_have_no_requests(run: Filled) -> None:
    states = ledger_s(run.folder)["rollout"]
    # Per task: 0.5 to 5.5 s, and 7 to 9 s of its second sample.
    assert states["generating"] == pytest.approx(2 * 6 * 7.0)
    assert states["no_requests"] == pytest.approx(2 * (6 * 1.5 + 5 * 1.5))
    assert states["unattributed"] == pytest.approx(2 * 0.5)


def test_accepted_samples_are_trained_and_the_others_filtered(run: Filled) -> None:
    deliveries = {row["sample_id"]: row for row in run.rows("deliveries")}
    assert deliveries["5-11"]["outcome"] == "filtered"
    assert sum(row["outcome"] == "trained" for row in deliveries.values()) == 11
    assert run.imported.tables["deliveries"].certainty is Certainty.INFERRED


def test_sessions_without_a_dump_still_tell_when_the_samplers_generated(tmp_path: Path) -> None:
    run = fill(tmp_path / "run", (written(tmp_path, [session()]), AREAL_SESSIONS), gpus={"sampler": 1})
    assert run.rows("samples") == []
    assert any("rollout.dump_to_file=true" in note for note in run.imported.notes)


def test_ranges_that_do_not_cover_the_response_are_not_believed(tmp_path: Path) -> None:
    dump = {"task_id": 1, "sample_idx": 0, "seqlen": 100, "prompt_len": 40, "head_version": 3, "tail_version": 4}
    folder = written(tmp_path, [session()], [{**dump, "version_rle": [[-1, 40], [3, 30], [4, 29]]}])
    (row,) = fill(tmp_path / "run", (folder, AREAL_SESSIONS), gpus={"sampler": 1}).rows("samples")
    assert (row["version_source"], row["versions"]) == ("admission", [{"version": 3, "start": 0, "end": 60}])


def test_what_is_no_session_is_counted(tmp_path: Path) -> None:
    folder = written(tmp_path, [session(), session(task_id=None), "{", session(submit_ts="now")])
    run = fill(tmp_path / "run", (folder, AREAL_SESSIONS), gpus={"sampler": 1})
    assert sum(file.bad_lines for file in run.imported.files) == 3


def test_dumps_without_sessions_are_an_error_that_names_the_setting(tmp_path: Path) -> None:
    shutil.copytree(FIXTURE / "rollout", tmp_path / "areal" / "rollout")
    assert AREAL_SESSIONS.recognize(open_source(tmp_path / "areal"))
    assert AREAL_SESSIONS.recognize(open_source(FIXTURE))
    with pytest.raises(ImportFileError, match=r"session_tracer\.enabled=true"):
        fill(tmp_path / "run", (tmp_path / "areal", AREAL_SESSIONS))


def test_sessions_of_a_resumed_run_that_counts_its_tasks_anew_are_refused(tmp_path: Path) -> None:
    again = [session(session_id=each, submit_ts=1_780_018_000.0) for each in (1, 0)]
    folder = written(tmp_path, [session(session_id=0), *again])
    with pytest.raises(ImportFileError, match="a second session 0, as of a run that was started again"):
        fill(tmp_path / "run", (folder, AREAL_SESSIONS))
