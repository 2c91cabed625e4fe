"""The commands on a file: what they write, where, and with which exit code."""

import gzip
import json
import os
import re
from pathlib import Path
from shutil import copy

import pytest

import rlscope
from rlscope.errors import ArgumentError, ImportFileError
from rlscope.importers import importer
from rlscope.importers.join import import_run
from rlscope.importers.options import import_options
from tests.cli.command import invoke
from tests.schemas import faults
from tests.trace_folder import worker, write_run

VERL = Path(__file__).parent / "fixtures" / "verl"
VLLM = Path(__file__).parent / "fixtures" / "vllm" / "engine.log"


def test_import_writes_a_run_folder_that_every_command_takes(tmp_path: Path) -> None:
    ended = invoke("import", VERL / "console.log", tmp_path / "run")
    assert ended.exit_code == 0, ended.output
    assert "console.log: 69 lines or records, 0 of them unreadable" in ended.stdout
    assert invoke("query", tmp_path / "run", "training_steps").exit_code == 0
    with rlscope.open(tmp_path / "run") as run:
        assert len(run.query("training_steps")) == 60


def test_import_refuses_a_folder_that_holds_something(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "kept").write_text("")
    with pytest.raises(rlscope.RlscopeError, match="found existing files; expected a new or empty folder"):
        invoke("import", VERL / "console.log", tmp_path / "run")


@pytest.mark.parametrize("name", [".", "run.json"])
def test_import_says_of_a_recorded_run_that_it_needs_no_import(name: str, tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [worker("e0", "sampler", 0, 1)])
    with pytest.raises(ImportFileError, match=r"run: found a recorded run; expected a log .* needs no import"):
        invoke("import", run / name, tmp_path / "imported")
    assert not (tmp_path / "imported").exists()


def test_the_page_of_a_file_goes_into_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    ended = invoke("analyze", VERL / "console.log")
    assert ended.exit_code == 0
    assert "console · imported from verl's console log console.log" in ended.stdout
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "wrote report.html" in ended.stderr
    assert "imported from verl&#39;s console log console.log" in page
    assert not list(VERL.glob("*.html"))


def test_questions_are_asked_of_a_file_where_it_lies() -> None:
    with rlscope.open(VERL / "metrics.jsonl") as run:
        assert run.query("reported_values").height > 0
        assert run.sql("SELECT count(*) AS steps FROM train_steps")["steps"].to_list() == [60]


def test_a_log_is_the_baseline_of_a_check() -> None:
    report = rlscope.check(
        VERL / "metrics.jsonl", fail_if="idle.trainer_ratio > 2 * baseline", baseline=VERL / "console.log"
    )
    assert [outcome.evaluated_ticks for outcome in report.rules] == [1]
    report = rlscope.check(VERL / "metrics.jsonl", baseline=VERL / "console.log")
    assert any("`rlscope compare` tests the rates of logs" in note for note in report.warnings)


def test_the_log_of_an_engine_joins_the_steps(tmp_path: Path) -> None:
    """Neither names a zone or a day of the other: both begin together, which is said."""
    ended = invoke("import", VERL / "console.log", tmp_path / "run", "--engine-log", VLLM, "--gpus-per-engine", "2")
    assert ended.exit_code == 0, ended.output
    with rlscope.open(tmp_path / "run") as run:
        roles = run.sql("SELECT role, sum(gpu_count) AS gpus FROM workers GROUP BY role ORDER BY role").rows()
        assert roles == [("sampler", 2), ("trainer", 1)]
        assert run.sql("SELECT count(*) AS n FROM engine_steps WHERE source = 'log'")["n"][0] > 0
        assert run.sql("SELECT count(*) AS n FROM activities WHERE worker_id = 'sampler'")["n"][0] == 0


def test_engines_whose_logs_have_the_same_name_are_named_after_their_folders(tmp_path: Path) -> None:
    paths = [tmp_path / node / "logs" / "engine.log" for node in ("node0", "node1")]
    for path in paths:
        path.parent.mkdir(parents=True)
        copy(VLLM, path)
    import_run(paths[0], tmp_path / "run", import_options(engine_logs=[str(tmp_path / "node*" / "logs" / "*.log")]))
    assert sorted(each.stem for each in (tmp_path / "run" / "workers").iterdir()) == [
        "node0-logs-engine.log",
        "node1-logs-engine.log",
    ]


def test_a_file_that_gzip_has_compressed_is_read_as_its_contents(tmp_path: Path) -> None:
    log, run = tmp_path / "engine.log", tmp_path / "run"
    copy(VLLM, log)
    packed = tmp_path / "engine.log.gz"
    packed.write_bytes(gzip.compress(log.read_bytes(), mtime=0))
    # vLLM states no year: it is that of the file's last change.
    os.utime(packed, (1_609_000_000, 1_609_000_000))
    imported = import_run(packed, run)
    assert [file.name for file in imported.files] == ["engine.log"]
    with rlscope.open(run) as opened:
        assert opened.sql("SELECT year(make_timestamp_ns(max(end_ns))) AS y FROM engine_steps")["y"][0] == 2020
        assert opened.sql("SELECT DISTINCT worker_id FROM engine_steps")["worker_id"].to_list() == ["engine"]


@pytest.mark.parametrize(
    ("content", "largest", "found"),
    [
        (gzip.compress(VLLM.read_bytes(), mtime=0)[:-9], 1 << 20, "that: zcat engine.log.gz > engine.log."),
        (gzip.compress(bytes(1 << 20), mtime=0), (1 << 20) - 1, "a compressed file with more than 1,048,575 bytes"),
        (gzip.compress(b"Loading checkpoint shards\n", mtime=0), 1 << 20, "found no run"),
    ],
)
def test_a_compressed_file_that_cannot_be_read_is_refused_by_its_own_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes, largest: int, found: str
) -> None:
    monkeypatch.setattr(importer, "LARGEST_UNPACKED_BYTES", largest)
    (tmp_path / "engine.log.gz").write_bytes(content)
    with pytest.raises(ImportFileError, match=rf"^{tmp_path}/engine\.log.*{re.escape(found)}"):
        import_run(tmp_path / "engine.log.gz", tmp_path / "run")


def test_a_role_with_two_numbers_of_gpus_is_refused() -> None:
    with pytest.raises(ArgumentError, match="--gpus: found trainer twice; expected each role once"):
        invoke("analyze", VERL / "console.log", "--gpus", "trainer=1,sampler=1,trainer=2")


@pytest.mark.parametrize("gpus", ["trainer", "trainer=0", "trainer=1.5", "auxiliary=1", "controller=1"])
def test_gpus_are_those_of_a_role_whose_time_a_log_can_show(gpus: str) -> None:
    with pytest.raises(ArgumentError, match=r"--gpus: found .*; expected ROLE=N with ROLE one of trainer, sampler"):
        invoke("analyze", VERL / "console.log", "--gpus", gpus)


def test_a_folder_with_two_forms_of_one_run_takes_the_one_with_times(tmp_path: Path) -> None:
    for name in ("console.log", "run.wandb", "metrics.jsonl"):
        copy(VERL / name, tmp_path)
    analysis = rlscope.analyze(tmp_path, page=False)
    imported = analysis.data_quality.imported
    assert imported is not None and imported.carriers == ("wandb",)
    assert imported.notes[0].startswith("Not read: metrics.jsonl, console.log. Pass one by name")
    assert analysis.run.run_id == tmp_path.name


def test_the_earlier_parts_of_a_rotated_log_are_named_and_how_to_join_them(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    for name in ("run.log", "run.log.1", "run.log.2.gz", "run.log.10.gz", "run.log.bak", "run.log2", "other.log.1"):
        copy(VERL / "console.log", tmp_path / "logs" / name)
    for number, given in enumerate((tmp_path / "logs", tmp_path / "logs" / "run.log")):
        notes = import_run(given, tmp_path / f"run{number}").notes
        assert [each for each in notes if each.startswith("Not read")] == [
            "Not read: run.log.10.gz, run.log.2.gz, run.log.1, earlier parts of run.log. Join them: "
            "zcat -f run.log.10.gz run.log.2.gz run.log.1 run.log > all.log"
        ]
    assert not any("Not read" in note for note in import_run(tmp_path / "logs" / "run.log.1", tmp_path / "last").notes)


@pytest.mark.parametrize("given", ["console.log", ""], ids=["a file", "its folder"])
def test_the_doctor_writes_what_it_says_as_json_that_fits_its_schema(tmp_path: Path, given: str) -> None:
    copy(VERL / "console.log", tmp_path)
    copy(VLLM, tmp_path / "vllm.log")
    ended = invoke("doctor", tmp_path / given, "--json", "-")
    document = json.loads(ended.stdout)
    assert faults("doctor", ended.stdout) == []
    first = document["checks"][0]
    assert (first["name"], first["status"], first["found"]) == ("training steps", "there", "60 training steps")
    assert {each["status"] for each in document["checks"]} == {"there", "in part", "missing"}
    assert [(Path(each["path"]).name, each["kind"]) for each in document["beside"]] == [("vllm.log", "vLLM engine log")]
    assert "+ training steps: 60 training steps" in " ".join(ended.stderr.split())


@pytest.mark.parametrize(("log", "clock"), [(VLLM, "local"), (VERL / "run.wandb", "wall")])
def test_the_document_of_a_log_names_its_clock_and_fits_the_schema(log: Path, clock: str) -> None:
    text = rlscope.analyze(log, page=False).to_json()
    assert faults("analysis", text) == []
    imported = json.loads(text)["data_quality"]["imported"]
    assert (imported["clock"], [file["name"] for file in imported["files"]]) == (clock, [log.name])


def test_the_doctor_of_a_recorded_run_names_lines_of_code() -> None:
    trace = Path(__file__).parents[2] / "sample_traces" / "starved_trainer"
    checks = {check.name: check for check in rlscope.doctor(trace).checks}
    assert checks["deliveries"].status == "there"
    assert checks["readings of the GPUs"].how == "pass gpu_interval_s=1.0 to rlscope_otel.start_run"
