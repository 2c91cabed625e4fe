"""Every framework: its names are its own, its phases fill the step, and what it cannot say is said."""

import csv
import json
from pathlib import Path
from shutil import copy

import pytest
from rich.console import Console

from rlscope.api import analyze, doctor
from rlscope.errors import ImportFileError
from rlscope.frameworks import NAMES, frameworks
from rlscope.frameworks.table import Framework, PhaseKind, Process
from rlscope.importers.importer import open_source
from rlscope.importers.join import import_run
from rlscope.importers.options import import_options
from rlscope.importers.recognize import recognize
from rlscope.importers.steps import has_steps_of
from rlscope.reports.blocks import Check
from rlscope.reports.card import card_blocks
from rlscope.reports.terminal import print_blocks
from rlscope.reports.text.verdict import gap_lines, why
from tests.importers.filling import asked
from tests.importers.nemo_console import CONFIG, block
from tests.importers.test_steps import jsonl

SECOND = 10**9
VLLM = Path(__file__).parent / "fixtures" / "vllm" / "engine.log"
RELEASES = [release for each in frameworks() for release in each.releases() if release.phases]
PROCESSES = [pytest.param(each, worker_id, id=f"{each.name}-{worker_id}-{each.known_by[0][0]}")
             for each in RELEASES for worker_id in each.phases]  # fmt: skip


def metrics_of(framework: Framework, process: Process, step: int) -> dict[str, float]:
    """One second for each phase, and the step that they make; a phase of what is left is 2 s."""
    named = [phase for phase in process.order if phase.metric is not None]
    counted = [phase for phase in named if phase.where != "before" and phase.when != "colocated"]
    metrics = {phase.metric for phase in named}
    values = {phase.metric or "": 1.0 + len(metrics.intersection(phase.minus)) for phase in named}
    values |= {phase.metric or "": float(step) for phase in named if phase.is_cumulative}
    rest = 2.0 * any(phase.metric is None for phase in process.order)
    values |= dict.fromkeys(process.step[:1], len(counted) + rest)
    values |= dict.fromkeys(framework.recognize.step[:1], float(step))
    return values


def write(path: Path, framework: Framework, process: Process, steps: range) -> Path:
    rows = [{"_step": step, "_timestamp": 1.7e9 + 100 * step, **metrics_of(framework, process, step)} for step in steps]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_the_file_of_a_framework_has_its_name() -> None:
    assert tuple(each.name for each in frameworks()) == NAMES


@pytest.mark.parametrize(("framework", "worker_id"), PROCESSES)
def test_a_framework_s_names_are_its_own_and_its_phases_fill_the_step(
    tmp_path: Path, framework: Framework, worker_id: str
) -> None:
    process = framework.phases[worker_id]
    path = write(tmp_path / "m.jsonl", framework, process, range(1, 6))
    if recognize(path).importer.kind != f"step metrics of {framework.title}":
        pytest.skip("the run folder's own importer reads this file")
    assert all(has_steps_of(role, open_source(path)) is (process.role == role) for role in ("trainer", "sampler"))
    # Some frameworks write the same metrics whether the roles share their GPUs or not.
    imported = import_run(path, tmp_path / "run", import_options(gpus="colocated=1"))
    assert imported.framework == framework.name and imported.refusal is None
    worker = f"worker_id = '{worker_id}'"
    pieces = (
        f"SELECT start_ns, end_ns FROM activities WHERE {worker} "
        f"UNION ALL SELECT start_ns, end_ns FROM train_steps WHERE {worker} "
        f"UNION ALL SELECT start_ns, end_ns FROM weight_updates WHERE {worker}"
    )
    (covered_ns,) = asked(tmp_path / "run", f"SELECT sum(end_ns - start_ns) FROM ({pieces})")[0]
    both = f"({pieces}) a JOIN ({pieces}) b ON a.start_ns < b.start_ns AND b.start_ns < a.end_ns"
    assert asked(tmp_path / "run", f"SELECT count(*) FROM {both}") == [(0,)]
    step_s = metrics_of(framework, process, 1).get(process.step[0] if process.step else "", None)
    counted = len([phase for phase in process.order if phase.when != "colocated"])
    assert covered_ns / SECOND == pytest.approx(5 * (step_s or counted), rel=0.35)


@pytest.mark.parametrize("framework", RELEASES, ids=lambda each: f"{each.name}-{each.known_by[0][0]}")
def test_the_phases_of_a_table_are_sound(framework: Framework) -> None:
    for process in framework.phases.values():
        names = [name for phase in process.order for name in (phase.metric, *phase.also) if name]
        assert len(names) == len(set(names)), "a metric is named once"
        assert not set(names) & set(process.step), "the whole step is none of its phases"
        assert sum(phase.metric is None for phase in process.order) <= 1
        if process.role == "trainer":
            assert any(phase.kind is PhaseKind.TRAIN for phase in process.order)


def prime_rl_pair(folder: Path, kept: list[int]) -> tuple[Path, Path]:
    """A trainer of which only some steps are in the export, and the whole orchestrator: steps of 10 s."""
    trainer = {
        "time/wait_for_batch": 4.0,
        "time/load_data": 0.0,
        "time/forward_backward": 5.0,
        "time/step": 9.0,
        "time/broadcast_weights": 1.0,
        "perf/throughput": 4000.0,
        "perf/throughput_per_gpu": 1000.0,
    }
    orchestrator = {
        "time/generate_completions": 6.0,
        "time/wait_for_weight_ckpt": 1.5,
        "time/update_weights": 2.0,
        "time/step": 10.0,
    }
    for name, metrics, steps in (("trainer", trainer, kept), ("orchestrator", orchestrator, list(range(100)))):
        with (folder / f"{name}.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, ["_step", "_timestamp", "step", *metrics])
            writer.writeheader()
            for step in steps:
                writer.writerow({"_step": step, "_timestamp": 1.7e9 + 10 * step, "step": step, **metrics})
    return folder / "trainer.csv", folder / "orchestrator.csv"


def shares(path: Path, with_file: Path) -> dict[tuple[str, str], float]:
    options = import_options(with_files=[with_file])
    analysis = analyze(path, options=options, page=False)
    return {(state.role, state.state): state.share_ratio for state in analysis.ledger.states}


def test_the_two_logs_of_prime_rl_join_on_one_clock(tmp_path: Path) -> None:
    trainer, orchestrator = prime_rl_pair(tmp_path, list(range(100)))
    found = shares(trainer, orchestrator)
    assert found["trainer", "waiting_for_samples"] == pytest.approx(0.4, abs=1e-9)
    assert found["trainer", "train"] == pytest.approx(0.5, abs=1e-9)
    assert found["trainer", "publishing_weights"] == pytest.approx(0.1, abs=1e-9)
    assert found["sampler", "generating"] == pytest.approx(0.6, abs=1e-9)
    assert found["sampler", "no_requests"] == pytest.approx(0.15, abs=1e-9)
    assert found["sampler", "applying_weights"] == pytest.approx(0.2, abs=1e-9)


def test_an_export_of_half_the_steps_keeps_its_shares_and_gives_a_verdict_with_a_caveat(tmp_path: Path) -> None:
    trainer, orchestrator = prime_rl_pair(tmp_path, [0, *range(1, 99, 2), 99])
    options = import_options(with_files=[orchestrator])
    analysis = analyze(trainer, options=options, page=False)
    found = {(state.role, state.state): state.share_ratio for state in analysis.ledger.states}
    assert found == shares(orchestrator, trainer), "the order of the files does not matter"
    assert found["trainer", "waiting_for_samples"] == pytest.approx(0.4, abs=1e-9)
    assert found["sampler", "generating"] == pytest.approx(0.6, abs=0.02)
    assert analysis.verdict.bottleneck == "samplers"
    assert "The export kept only some steps (51.0% of trainer), spread evenly over the run" in why(analysis)
    assert any("51 of 100 steps; missing: 2, 4, 6, 8, 10 and 44 more gaps" in line for line in gap_lines(analysis))
    assert analysis.run.trainer_gpus == 4
    imported = analysis.data_quality.imported
    assert imported is not None and imported.is_incomplete
    outside = "start_ns < started_ns OR end_ns > stopped_ns OR end_ns <= start_ns"
    sql = f"SELECT count(*) FROM activities JOIN workers USING (worker_id) WHERE {outside}"
    assert asked(analysis.folder.path, sql) == [(0,)]


def test_throughput_and_totals_are_shown_as_the_framework_reports_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trainer, _ = prime_rl_pair(tmp_path, list(range(20)))
    analysis = analyze(trainer, page=False)
    assert analysis.throughput.achieved_tokens_per_s is None
    (reported,) = analysis.throughput.reported
    assert (reported.name, reported.steps, reported.mean, reported.max) == ("perf/throughput", 20, 4000.0, 4000.0)
    print_blocks(card_blocks(analysis), Console(width=120))
    card = capsys.readouterr().out
    assert "As reported by prime-rl, perf/throughput: mean 4,000, max 4,000, 20 steps" in card
    assert "0 tokens in 0 samples" not in card


def test_the_tokens_of_an_engine_s_log_are_its_generated_throughput() -> None:
    """Nine windows of 10 s: 5230.5 + 3719.8 + 3904 + 4403 + 828.9 + 0 + 427.9 + 1336.4 + 727.4 tokens/s."""
    assert analyze(VLLM, page=False).throughput.generated_tokens_per_s == pytest.approx(20_577.9 / 9, rel=1e-4)


def test_means_over_several_steps_are_shown_as_long_as_those_steps(tmp_path: Path) -> None:
    metrics = {"perf/rollout_wait_s": 1.0, "perf/fwd_bwd_s": 2.0, "perf/step_s": 4.0}
    rows = [{"_step": index, "_timestamp": 1.7e9 + 40 * index, "train/global_step": 10 * index} for index in (1, 2, 3)]
    lines = [json.dumps({**row, **{f"train/{name}": value for name, value in metrics.items()}}) for row in rows]
    (tmp_path / "m.jsonl").write_text("\n".join(lines))
    imported = import_run(tmp_path / "m.jsonl", tmp_path / "run")
    assert imported.coverage == {}
    found = asked(tmp_path / "run", "SELECT step, (end_ns - start_ns) / 1e9 FROM train_steps ORDER BY 1")
    assert found == [(10, 20.0), (20, 20.0), (30, 20.0)]


def test_times_that_contradict_the_durations_are_not_used(tmp_path: Path) -> None:
    """Rows that were all written at the end, as a tool does that uploads a finished run."""
    metrics = {"timing_s/gen": 50.0, "timing_s/update_actor": 50.0, "timing_s/step": 100.0}
    lines = [json.dumps({"step": step, "time": 1.7e9 + step, "data": metrics}) for step in range(10)]
    (tmp_path / "m.jsonl").write_text("\n".join(lines))
    imported = import_run(tmp_path / "m.jsonl", tmp_path / "run")
    assert imported.clock == "relative"
    assert any("steps are longer than the time between their rows" in note for note in imported.notes)


def checks(path: Path) -> dict[str, Check]:
    return {each.name: each for each in doctor(path).checks}


def test_the_doctor_says_what_brings_what_is_missing() -> None:
    found = checks(Path(__file__).parent / "fixtures" / "verl" / "console.log")
    assert found["training steps"].status == "there"
    assert found["time of the trainer workers"].status == "there"
    assert found["time of the sampler workers"].status == "in part"
    assert "disable_log_stats=False" in found["forward passes"].how
    assert "--engine-log" in found["forward passes"].how
    # The file does not say which engine generated.
    assert "if its engines are SGLang's, starting them with --export-metrics" in found["deliveries"].how
    assert found["dates"].status == "missing" and ".wandb" in found["dates"].how
    assert all(bool(piece.how) == (piece.status != "there") for piece in found.values())


STEPS = [1, 2, 3, 4, 5]
GENERATED = {"timing_s/gen": 4.0, "timing_s/update_actor": 5.0, "timing_s/step": 9.0}


def test_the_doctor_names_the_flag_that_the_card_names(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "a.jsonl", STEPS, GENERATED)
    gpus = checks(path)["GPUs of both sides"]
    assert (gpus.status, gpus.how) == ("in part", "pass --gpus trainer=N")
    unsettled = GENERATED | {"training/off_policy/trajectory_spans/mean": 1.0}
    path = jsonl(tmp_path / "b.jsonl", STEPS, unsettled)
    verdict = checks(path)["a verdict"]
    assert (verdict.status, verdict.how) == ("missing", "pass --gpus colocated=N or --gpus trainer=N,sampler=N")


def test_the_doctor_names_a_file_with_unreadable_lines(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "a.jsonl", STEPS, GENERATED)
    path.write_text(path.read_text() + '{"step": 6, "data": {"timing\n')
    assert checks(path)["readable files"].found == "a.jsonl: 1 of 6 lines could not be read and are left out"


def test_the_doctor_lists_what_adds_to_a_run_and_neither_its_steps_again_nor_another_framework(tmp_path: Path) -> None:
    trainer, orchestrator = prime_rl_pair(tmp_path, list(range(100)))
    copy(trainer, tmp_path / "again.csv")
    jsonl(tmp_path / "verl.jsonl", STEPS, GENERATED)
    copy(VLLM, tmp_path / "engine.log")
    assert [(each.path, each.how) for each in doctor(trainer).beside] == [
        (tmp_path / "engine.log", "pass it with --engine-log"),
        (orchestrator, "pass it with --with if it is part of the same run"),
    ]


def test_a_file_of_another_framework_or_with_the_trainer_again_is_no_part_of_the_run(tmp_path: Path) -> None:
    verl, nemo = tmp_path / "a.log", tmp_path / "b.log"
    verl.write_text("step:1 - timing_s/gen:4.0 - timing_s/update_actor:5.0 - timing_s/step:9.0\n")
    nemo.write_text(CONFIG + block(1, 20.0, {"generation": 12.0, "policy_training": 8.0}))
    metrics = {"generation": 12.0, "policy_training": 8.0, "total_step_time": 20.0}
    rows = tmp_path / "c.jsonl"
    rows.write_text(json.dumps({"step": 1, **{f"timing/train/{name}": each for name, each in metrics.items()}}) + "\n")
    with pytest.raises(ImportFileError, match=r"b\.log: found a run of nemo-rl; .*a\.log, which is of verl"):
        import_run(verl, tmp_path / "run", import_options(with_files=[nemo]))
    with pytest.raises(ImportFileError, match=r"found trainer steps, which .* has too"):
        import_run(rows, tmp_path / "run", import_options(with_files=[nemo]))
