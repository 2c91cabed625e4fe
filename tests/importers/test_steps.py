"""What is read from the metrics of a trainer: the steps, what it did in them, and how sure that is."""

import json
import lzma
import os
import re
from ast import literal_eval
from collections.abc import Iterable
from pathlib import Path

import pytest

from rlscope.api import analyze
from rlscope.errors import ArgumentError, ImportFileError
from rlscope.importers import console as printed
from rlscope.importers.console import CONSOLE
from rlscope.importers.join import RELATIVE_ORIGIN_NS as ORIGIN
from rlscope.importers.join import import_run, resolve
from rlscope.importers.options import import_options
from rlscope.importers.rows import Tally
from rlscope.importers.target import ImportOptions
from rlscope.reports.text import verdict as verdict_words
from rlscope.reports.text.origin import origin_lines
from rlscope.trace.imported import Certainty, Imported
from rlscope.trace.store import open_run
from tests.importers.filling import asked

SECOND = 10**9
ASYNC = {
    "timing_s/gen": 4.0,
    "timing_s/old_log_prob": 0.5,
    "timing_s/adv": 0.25,
    "timing_s/update_actor": 3.0,
    "timing_s/update_weights": 2.0,
    "timing_s/step": 10.0,
    "perf/total_num_tokens": 1000,
    "perf/time_per_step": 10.0,
    "perf/throughput": 50.0,
    "actor/pg_loss": 0.25,
    "training/off_policy/trajectory_staleness/mean": 0.5,
}
SYNC = {
    "timing_s/gen": 4.0,
    "timing_s/update_actor": 5.5,
    "timing_s/step": 9.5,
    "timing_s/generate_sequences": 3.0,
}
OWN_GPUS = import_options(gpus="trainer=8,sampler=6")
TIMES = f"(start_ns - {ORIGIN}) / 1e9, (end_ns - {ORIGIN}) / 1e9"
PREFIX = "\x1b[36m(TaskRunner pid=7)\x1b[0m "
CONFIG = f"""{PREFIX}{{'actor_rollout_ref': {{'rollout': {{'n': 4,
{PREFIX}                                   'n_gpus_per_node': 2,
(WorkerDict pid=9) another worker's line
{PREFIX}                                   'nnodes': 3}}}},
{PREFIX} 'data': {{'train_batch_size': 16}},
{PREFIX} 'trainer': {{'n_gpus_per_node': 8, 'nnodes': 1}}}}
"""


def verl_line(step: int, metrics: dict[str, float]) -> str:
    return f"{PREFIX}step:{step} - " + " - ".join(f"{name}:{value}" for name, value in metrics.items()) + "\n"


def console(path: Path, steps: Iterable[int], metrics: dict[str, float], head: str = "") -> Path:
    path.write_text(head + "".join(verl_line(step, metrics) for step in steps), encoding="utf-8")
    return path


def jsonl(path: Path, steps: list[int], metrics: dict[str, float]) -> Path:
    path.write_text("".join(json.dumps({"step": step, "data": metrics}) + "\n" for step in steps), encoding="utf-8")
    return path


def imported_to(folder: Path, path: Path, options: ImportOptions | None = None) -> Imported:
    return import_run(path, folder, options or import_options())


def test_a_step_of_separate_roles_is_laid_out_in_the_order_of_the_program(tmp_path: Path) -> None:
    imported = imported_to(tmp_path / "run", console(tmp_path / "a.log", range(1, 3), ASYNC, CONFIG))
    activities = f"SELECT worker_id, activity, reason, {TIMES} FROM activities ORDER BY ALL"
    assert asked(tmp_path / "run", activities) == [
        ("sampler", "generate", None, 0.0, 4.0),
        ("sampler", "generate", None, 10.0, 14.0),
        ("trainer", "logprobs", None, 4.0, 4.5),
        ("trainer", "logprobs", None, 14.0, 14.5),
        ("trainer", "reward", None, 4.5, 4.75),
        ("trainer", "reward", None, 14.5, 14.75),
        ("trainer", "wait", "samples", 0.0, 4.0),
        ("trainer", "wait", "samples", 10.0, 14.0),
    ]
    steps = f"step, {TIMES}, version_in, version_out, samples, tokens, loss"
    assert asked(tmp_path / "run", f"SELECT {steps} FROM train_steps") == [
        (1, 4.75, 7.75, 0, 1, 64, 1000, 0.25),
        (2, 14.75, 17.75, 1, 2, 64, 1000, 0.25),
    ]
    updates = f"SELECT worker_id, phase, version, {TIMES} FROM weight_updates ORDER BY ALL"
    assert asked(tmp_path / "run", updates) == [
        ("sampler", "apply", 1, 7.75, 9.75),
        ("sampler", "apply", 2, 17.75, 19.75),
        ("trainer", "publish", 1, 7.75, 9.75),
        ("trainer", "publish", 2, 17.75, 19.75),
    ]
    assert asked(tmp_path / "run", "SELECT worker_id, role, gpu_count FROM workers ORDER BY ALL") == [
        ("sampler", "sampler", 6),
        ("trainer", "trainer", 8),
    ]
    with open_run(tmp_path / "run") as run:
        assert run.config.samples_per_step == 64
    assert imported.clock == "relative"
    assert imported.tables["train_steps"].certainty is Certainty.PLACED
    assert imported.tables["activities"].certainty is Certainty.INFERRED


@pytest.mark.parametrize(
    ("more", "gpus", "roles", "is_refused"),
    [
        # verl 0.7.1 to 0.8 log update_weights in every run; only asynchronous trainers log what follows.
        ({}, None, ["colocated"], False),
        ({"timing_s/timing_s/param_sync": 0.25}, None, ["sampler", "trainer"], False),
        ({"timing_s/switch_to_trainer": 0.25}, None, ["sampler", "trainer"], False),
        ({"fully_async/count/stale_samples": 0}, None, ["sampler", "trainer"], False),
        # Its trainers of 2026 all log off_policy: without a config nothing tells them apart.
        ({"training/off_policy/trajectory_spans/mean": 1.0}, None, ["colocated"], True),
        ({"training/off_policy/trajectory_spans/mean": 1.1}, None, ["sampler", "trainer"], True),
        ({"training/off_policy/trajectory_spans/mean": 1.1}, "colocated=8", ["colocated"], False),
        ({"training/off_policy/trajectory_spans/mean": 1.0}, "trainer=8,sampler=8", ["sampler", "trainer"], False),
    ],
)
def test_whose_gpus_generate_in_a_run_of_verl_that_logs_its_weight_updates(
    tmp_path: Path, more: dict[str, float], gpus: str | None, roles: list[str], is_refused: bool
) -> None:
    metrics = {"timing_s/gen": 4.0, "timing_s/update_actor": 3.75, "timing_s/update_weights": 2.0, "timing_s/step": 10}
    log = console(tmp_path / "a.log", range(9), metrics | more)
    imported = imported_to(tmp_path / "run", log, import_options(gpus=gpus))
    assert asked(tmp_path / "run", "SELECT role FROM workers ORDER BY role") == [(role,) for role in roles]
    assert (imported.refusal is not None) is is_refused
    assert not is_refused or "pass --gpus colocated=N" in str(imported.refusal)


@pytest.mark.parametrize(
    ("mode", "rollout_nodes", "role"),
    [("sync", 0, "colocated"), ("colocate_async", 0, "colocated"), ("separate_async", 1, "trainer")],
)
def test_verl_s_config_tells_whose_gpus_generate(tmp_path: Path, mode: str, rollout_nodes: int, role: str) -> None:
    """A warning of the same process stands between the config's lines, as Ray mixes what a worker prints."""
    config = (
        f"{PREFIX}{{'actor_rollout_ref': {{'rollout': {{'nnodes': {rollout_nodes},\n"
        f"{PREFIX}/opt/ray/hook.py:22: DeprecationWarning: a parameter is deprecated.\n"
        f"{PREFIX}  warnings.warn(\n"
        f"{PREFIX}                                   'n_gpus_per_node': 8}}}},\n"
        f"{PREFIX} 'trainer': {{'v1': {{'trainer_mode': '{mode}'}},\n"
        f"{PREFIX}             'n_gpus_per_node': 8, 'nnodes': 1}}}}\n"
    )
    imported = imported_to(tmp_path / "run", console(tmp_path / "a.log", range(9), ASYNC, config))
    assert imported.refusal is None
    assert asked(tmp_path / "run", "SELECT role, gpu_count FROM workers WHERE worker_id = 'trainer'") == [(role, 8)]


def test_a_run_one_step_behind_publishes_before_it_trains(tmp_path: Path) -> None:
    """verl's one-step-off recipe: update_weights lies inside sync_rollout_weights."""
    metrics = {"timing_s/wait_prev_gen": 4.0, "timing_s/sync_rollout_weights": 2.0, "timing_s/update_weights": 1.9}
    log = console(tmp_path / "a.log", range(1, 4), metrics | {"timing_s/update_actor": 4.0, "timing_s/step": 10.0})
    imported_to(tmp_path / "run", log)
    published = f"SELECT version, {TIMES} FROM weight_updates WHERE phase = 'publish' ORDER BY version"
    assert asked(tmp_path / "run", published) == [(1, 4.0, 6.0), (2, 14.0, 16.0), (3, 24.0, 26.0)]
    assert asked(tmp_path / "run", f"SELECT {TIMES} FROM activities WHERE reason = 'samples'") == [
        (0.0, 4.0),
        (10.0, 14.0),
        (20.0, 24.0),
    ]


def test_steps_that_are_written_again_after_a_restart_are_said_and_the_last_counts(tmp_path: Path) -> None:
    """The first attempt saved a checkpoint after step 4, and the second one did not: nothing of the first is kept."""
    first = [verl_line(step, SYNC) for step in (1, 2, 3)] + [
        verl_line(4, {**SYNC, "timing_s/save_checkpoint": 5.0, "timing_s/step": 14.5})
    ]
    again = [verl_line(step, {**SYNC, "timing_s/gen": 3.0, "timing_s/step": 8.5}) for step in (3, 4, 5)]
    (tmp_path / "a.log").write_text("".join([*first, *again]))
    imported = imported_to(tmp_path / "run", tmp_path / "a.log")
    assert any("2 duplicate trainer steps in the file" in note for note in imported.notes)
    spent = "SELECT activity, sum(end_ns - start_ns) / 1e9 FROM activities GROUP BY ALL"
    assert asked(tmp_path / "run", spent) == [("generate", 4.0 + 4.0 + 3.0 * 3)]
    (tmp_path / "b.log").write_text("".join(2 * [verl_line(step, SYNC) for step in (1, 2, 3)]))
    assert not any("duplicate" in note for note in imported_to(tmp_path / "same", tmp_path / "b.log").notes)


@pytest.mark.parametrize(
    ("name", "content", "found"),
    [
        ("a.log", lzma.compress(b"step:1 - loss:0.5"), "a compressed file"),
        ("a.log", "step:1 - loss:0.5".encode("utf-16"), "text in UTF-16"),
        ("a.log", b" \n", "an empty file"),
        ("a.csv", b'"Step","a - timing_s/gen","a - timing_s/gen__MIN"\n"1","2","2"\n', "a chart exported from W&B"),
        (
            "a.txt",
            b"# HELP vllm:x X\n# TYPE vllm:x gauge\nvllm:x 1.0\n",
            "a page of an engine's metrics, which has a single",
        ),
        ("a.txt", b'sglang:num_running_reqs{engine_type="unified"} 8.0\n', "a page of an engine's metrics"),
        ("a.json", b'{"schema_version": 1, "verdict": {"bottleneck": "samplers"}}', "a result that rlscope wrote;"),
        ("a.json", b'{"timing_s/gen": [1, 2], "timing_s/step": [2, 3]}', "a JSON document, and no list of rows"),
        ("a.wandb", b":W&B\xe1\xbe\x00", "a .wandb file without metrics; expected a log or a metrics file. Pass the"),
    ],
)
def test_a_file_in_a_form_that_is_not_read_is_named(tmp_path: Path, name: str, content: bytes, found: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ImportFileError, match=re.escape(found)):
        import_run(tmp_path / name, tmp_path / "run")


@pytest.mark.parametrize(
    ("metrics", "gpus", "said"),
    [
        (SYNC, "trainer=8", []),
        (SYNC, "trainer=8,sampler=6", ["--gpus sampler=6 has no effect: by the file, samplers share the trainer's"]),
        (ASYNC, "trainer=8,sampler=6", []),
        (ASYNC, "colocated=14", ["--gpus colocated=14 has no effect: by the file, samplers have GPUs of their own"]),
    ],
)
def test_gpus_of_a_role_that_the_run_has_not_are_said_to_have_no_effect(
    tmp_path: Path, metrics: dict[str, float], gpus: str, said: list[str]
) -> None:
    head = CONFIG if metrics is ASYNC else CONFIG.replace("'nnodes': 3", "'nnodes': 0")
    log = console(tmp_path / "a.log", range(3), metrics, head)
    notes = imported_to(tmp_path / "run", log, import_options(gpus=gpus)).notes
    assert [note for note in notes if "no effect" in note] == said


@pytest.mark.parametrize(
    ("rate", "gpus", "is_said"),
    [(50.0, 2, False), (50.4, 2, False), (51.0, 1, True), (33.1, 3, False), (40.0, 1, True)],
)
def test_gpus_follow_from_the_rates_where_they_make_a_whole_number(
    tmp_path: Path, rate: float, gpus: int, is_said: bool
) -> None:
    metrics = {**SYNC, "perf/total_num_tokens": 1000, "perf/time_per_step": 10.0, "perf/throughput": rate}
    imported = imported_to(tmp_path / "run", console(tmp_path / "a.log", range(3), metrics))
    assert asked(tmp_path / "run", "SELECT gpu_count FROM workers") == [(gpus,)]
    assert any("--gpus trainer=N" in note for note in imported.notes) is is_said


@pytest.mark.parametrize(
    ("missing", "coverage", "words", "is_refused"),
    [
        ({7, 50, 51, 52, 80}, 0.95, "contains 95 of 100 steps; missing: 7, 50-52, 80", False),
        ({7, 50, 51, 52, 53, 54, 55}, 0.93, "contains 93 of 100 steps; missing: 7, 50-55", True),
    ],
)
def test_missing_steps_are_named_and_more_than_a_few_give_no_verdict(
    tmp_path: Path, missing: set[int], coverage: float, words: str, is_refused: bool
) -> None:
    steps = [step for step in range(100) if step not in missing]
    imported = imported_to(tmp_path / "run", jsonl(tmp_path / "m.jsonl", steps, ASYNC), OWN_GPUS)
    assert imported.coverage == {"trainer": coverage}
    assert any(words in note for note in imported.notes)
    assert (imported.is_incomplete, imported.thinned_evenly) == (is_refused, ())
    assert (words in (imported.refusal or "")) is is_refused
    assert (analyze(tmp_path / "run", page=False).verdict.bottleneck == "unknown") is is_refused


@pytest.mark.parametrize(
    ("left_out", "kept", "is_even"),
    [
        # 9 tenths of 20 steps keep 10, one keeps 5 (or 4), the fewest; half the mean tenth is 4.75.
        (range(1, 20, 2), 5, True),
        (range(1, 20, 2), 4, False),
        # 9 tenths keep 19, one keeps 9 (or 8): of 180, half the mean tenth is 9.
        (range(1, 2), 9, True),
        (range(1, 2), 8, False),
    ],
)
def test_an_export_that_is_thinned_evenly_supports_a_verdict(
    tmp_path: Path, left_out: range, kept: int, is_even: bool
) -> None:
    others = [step for step in range(200) if step % 20 not in left_out and not 100 <= step < 120]
    steps = sorted([*others, *range(100, 100 + kept)])
    imported = imported_to(tmp_path / "run", jsonl(tmp_path / "m.jsonl", steps, SYNC))
    assert imported.is_incomplete and (imported.refusal is None) is is_even
    assert imported.thinned_evenly == (("trainer",) if is_even else ())
    assert any("at regular intervals" in line for line in origin_lines(imported)) is is_even


def test_steps_quoted_from_a_log_ask_for_the_whole_log(tmp_path: Path) -> None:
    """Notes about a run (2026) that quote steps 2, 52, 92 and 122: no export left out the others."""
    imported = imported_to(tmp_path / "run", console(tmp_path / "a.log", [2, 52, 92, 122], SYNC))
    assert imported.refusal is not None
    assert "4 of 121 steps; missing: 3-51, 53-91, 93-121; pass the whole log" in imported.refusal
    assert not any("export" in line for line in origin_lines(imported))


@pytest.mark.parametrize(
    ("every", "left", "is_refused"),
    [
        # 190 of 200 steps, 95%, are enough; 189 are not.
        (20, "", False),
        (18, "", True),
        # Steps that are not in the file at all may be any.
        (10, None, False),
        # The time of generation is no time of a step.
        (10, " - timing_s/gen:4.0 - timing_s/re", True),
    ],
)
def test_steps_whose_rows_are_cut_off_are_no_fair_sample(
    tmp_path: Path, every: int, left: str | None, is_refused: bool
) -> None:
    """W&B's output.log keeps 4,096 characters of a line: verl's rows of steps that evaluate lose their times."""
    whole = "".join(f" - {name}:{value}" for name, value in SYNC.items())
    ends = [left if step % every == every // 2 else whole for step in range(200)]
    rows = [f"step:{step} - actor/pg_loss:0.5{end}" for step, end in enumerate(ends) if end is not None]
    (tmp_path / "output.log").write_text("\n".join(rows))
    imported = imported_to(tmp_path / "run", tmp_path / "output.log")
    assert (imported.refusal is not None) is is_refused
    words = f"({200 // every:,} without the time of the step, as if cut off: W&B's output.log cuts long lines)"
    assert any(words in note for note in imported.notes) is (left is not None)


@pytest.mark.parametrize(
    ("step_s", "refused"), [(9.5, False), (9.75, False), (10.83, False), (10.84, True), (9.4, True)]
)
def test_phases_that_do_not_add_up_to_the_step_give_no_verdict(tmp_path: Path, step_s: float, refused: bool) -> None:
    """They add up to 9.75 s; 10% of the step is what may be left, and 3% of it what may be too much."""
    log = console(tmp_path / "a.log", range(9), {**ASYNC, "timing_s/step": step_s})
    imported = imported_to(tmp_path / "run", log, OWN_GPUS)
    assert (imported.refusal is not None) is refused


def test_without_step_metrics_an_error_says_what_is_missing(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text("hello\nstep:1 - loss:0.5\n")
    with pytest.raises(ImportFileError, match=r"a\.log: found no run, but .*'step:1 - loss:0\.5'; expected .*docs"):
        import_run(tmp_path / "a.log", tmp_path / "run")
    with pytest.raises(ImportFileError, match=r"found no metric that verl writes; expected .*`timing_s/step`"):
        import_run(tmp_path / "a.log", tmp_path / "run", import_options("verl"))
    with pytest.raises(ArgumentError, match=r"--as: found 'torch'; expected one of .*trl, unirl, verl"):
        import_run(tmp_path / "a.log", tmp_path / "run", import_options("torch"))


def test_a_pipe_is_refused_as_it_may_never_end(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.log")
    with pytest.raises(
        ImportFileError,
        match=r"a\.log: found a pipe or a device, not a file; expected a file or folder that can be read. Write it",
    ):
        resolve(tmp_path / "a.log")
    options = import_options(engine_logs=[str(tmp_path / "a.log")])
    with pytest.raises(ImportFileError, match="a pipe or a device"):
        resolve(console(tmp_path / "b.log", range(3), SYNC), options)


def test_a_run_folder_is_its_own_and_takes_no_options_of_an_import(tmp_path: Path) -> None:
    imported_to(tmp_path / "run", console(tmp_path / "a.log", range(3), SYNC))
    assert resolve(tmp_path / "run").path == resolve(tmp_path / "run" / "run.json").path == tmp_path / "run"
    with pytest.raises(ArgumentError, match="a run folder with import options"):
        resolve(tmp_path / "run", import_options(gpus="trainer=8"))


@pytest.mark.parametrize("address", ["s3://AKIA:secret@bucket/run", "gs:/bucket/run", "abfs://bucket@account/run"])
def test_an_address_in_an_object_store_is_refused_and_not_repeated(address: str) -> None:
    with pytest.raises(ArgumentError, match=r"found an address in an object store; .* `aws s3 sync") as raised:
        resolve(Path(address))
    assert "bucket" not in str(raised.value)


def test_a_folder_is_searched_and_several_runs_in_it_are_an_error_that_names_them(tmp_path: Path) -> None:
    logs = tmp_path / "in" / "logs"
    logs.mkdir(parents=True)
    log = console(logs / "a.log", range(3), SYNC)
    (logs / "other.log").write_text("nothing here\n")
    for number, (given, name) in enumerate(((logs, "a.log"), (logs.parent, "logs/a.log"), (log, "a.log"))):
        assert [file.name for file in imported_to(tmp_path / str(number), given).files] == [name]
    console(logs / "b.log", range(3), SYNC)
    with pytest.raises(ImportFileError, match=r"found 2 files .*: a\.log, b\.log; .* Pass one of them\.$"):
        imported_to(tmp_path / "two", logs)


def test_a_folder_of_runs_is_an_error_that_names_them_unless_a_framework_is_named(tmp_path: Path) -> None:
    log = console(tmp_path / "a.log", range(3), SYNC)
    for name in ("monday", "old/tuesday"):
        imported_to(tmp_path / name, log)
    found = r"found 2 recorded runs below it: monday, old/tuesday; expected one run, .*`rlscope list` shows all runs"
    with pytest.raises(ImportFileError, match=found):
        resolve(tmp_path)
    assert import_run(tmp_path, tmp_path / "run", import_options("verl")).files[0].name == "a.log"


@pytest.mark.parametrize(
    ("stray", "is_read"),
    [
        *((line, True) for line in (",", "[", "(", "{", "[ (", ")", "]", "}", "}}", "-----")),
        ("  0%|          | 0/5 [00:00<?, ?it/s]", True),
        ("[2026-01-01 00:00:00,123] warning: a parameter is deprecated", True),
        ("[2026-01-01 00:00:00,123][ray][INFO] - (pid=7)", True),
        ("[rank0]: 'unfinished", True),
        ("1 2\n3 4\n5 6\n7 8\n9 10", False),
    ],
)
def test_a_stray_line_inside_a_printed_config_does_not_lose_it(tmp_path: Path, stray: str, is_read: bool) -> None:
    lines = "".join(f"{PREFIX}{line}\n" for line in stray.splitlines())
    for place, line in enumerate(CONFIG.splitlines(keepends=True)[:-1]):
        head = CONFIG.replace(line, line + lines)
        imported = imported_to(tmp_path / str(place), console(tmp_path / "a.log", range(1, 3), ASYNC, head))
        config = json.loads((tmp_path / str(place) / "run.json").read_text(encoding="utf-8"))["config"]
        found = config.get("samples_per_step"), config.get("group_size")
        assert found == ((64, 4) if is_read else (None, None)), place
        assert any("config printed over several lines" in note for note in imported.notes) is not is_read
        assert ("the config that it prints cannot be parsed" in (imported.refusal or "")) is not is_read


@pytest.mark.parametrize("stray", ["", ",\n", "[\n"])
def test_a_line_of_a_printed_config_that_was_split_before_its_comma_is_read(tmp_path: Path, stray: str) -> None:
    """The public log of an asynchronous verl run has such a line; the comma is the config's own."""
    head = CONFIG.replace(",\n", f"\n{PREFIX},\n")
    first, rest = head.split("\n", 1)
    log = console(tmp_path / "a.log", range(1, 3), ASYNC, f"{first}\n{PREFIX if stray else ''}{stray}{rest}")
    imported = imported_to(tmp_path / "run", log)
    config = json.loads((tmp_path / "run" / "run.json").read_text(encoding="utf-8"))["config"]
    assert (config["samples_per_step"], config["group_size"], imported.refusal) == (64, 4, None)


@pytest.mark.parametrize("line", ["'b': {{'c': {{'d': '{text}'}}}}", "'b': '{text}', 1 2", "'b': [[[[[[[[[['{text}'"])
def test_a_config_that_never_ends_is_not_parsed_again_at_every_line_that_might_end_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    parsed: list[int] = []

    def parse(text: str) -> object:
        parsed.append(len(text))
        return literal_eval(text)

    monkeypatch.setattr(printed.ast, "literal_eval", parse)
    ends = f"{PREFIX}'z': {{'y': {{'x': 1}}}}\n" * 200
    endless = f"{PREFIX}{{'a': 1,\n" + f"{PREFIX}{line.format(text='e' * 1000)}\n" * 200 + ends
    list(CONSOLE.rows(console(tmp_path / "a.log", range(1, 3), ASYNC, 5 * endless), Tally()))
    # 8 times the longest config, and the last attempt: a parse for each of 4 strays, and one more.
    assert 2**18 < sum(parsed) <= (8 + 5) * 2**18


@pytest.mark.parametrize(
    ("gen_s", "inside_s", "label", "outside", "shortened"),
    [
        (4.0, 3.3, "training", "", "training:"),
        (6.0, 4.8, "generation", " 20.0% of generation lies outside generate_sequences: waking", "generation:"),
        (6.0, 4.81, "generation", "", "generation:"),
        (6.0, 3.01, "generation", " 49.8% of generation lies outside", "generation:"),
        (6.0, 3.0, "generation", " 50.0% of generation lies outside", "what generation does outside"),
    ],
)
def test_a_run_without_sides_is_judged_by_its_longest_phase(
    tmp_path: Path, gen_s: float, inside_s: float, label: str, outside: str, shortened: str
) -> None:
    metrics = {"timing_s/gen": gen_s, "timing_s/update_actor": 5.5, "timing_s/step": gen_s + 5.5}
    log = console(tmp_path / "a.log", range(9), {**metrics, "timing_s/generate_sequences": inside_s})
    analysis = analyze(log, page=False)
    share = f"{max(gen_s, 5.5) / (gen_s + 5.5):.1%} of the time"
    assert verdict_words.label(analysis) == f"Longest phase: {label}"
    assert verdict_words.headline(analysis).startswith(f"{label.capitalize()} takes {share}")
    assert verdict_words.next_step(analysis).startswith(f"To go faster, shorten {shortened} ")
    why = verdict_words.why(analysis)
    assert "the same GPUs sample and train in turn" in why and outside in why
    assert ("outside" in why) is bool(outside)


def test_the_longest_phase_may_be_one_with_a_plural_name(tmp_path: Path) -> None:
    metrics = {"timing_s/gen": 3.0, "timing_s/ref": 5.0, "timing_s/update_actor": 2.0, "timing_s/step": 10.0}
    analysis = analyze(console(tmp_path / "a.log", range(9), metrics), page=False)
    assert verdict_words.headline(analysis).startswith("Log-probabilities take 50.0% of the time")
    assert verdict_words.next_step(analysis).startswith("To go faster, recompute log-probabilities in larger")


def test_a_run_without_sides_has_its_phases_beside_a_loss_of_more_than_a_tenth(tmp_path: Path) -> None:
    metrics = {"timing_s/gen": 5.0, "timing_s/update_actor": 3.0, "timing_s/update_weights": 2.0, "timing_s/step": 10.0}
    analysis = analyze(console(tmp_path / "a.log", range(9), metrics), page=False)
    assert verdict_words.headline(analysis) == "Weight updates take 20.0% of all GPU time"
    assert "in turn: generation 50.0%, training 30.0%, " in verdict_words.why(analysis)


@pytest.mark.parametrize(
    ("testing_s", "headline", "stretch"),
    [
        # Of 59 steps of 9.5 s, 59 of 11.5 s and twice this: less than training, which takes 118 * 5.5 s, or more.
        (300.0, "Generation takes 52.2% of the time", "In steady state (steps 61 to 119, 11 min 18 s)"),
        (400.0, "Evaluation takes 39.2% of the time", "Over 33 min 59 s of the run"),
    ],
)
def test_evaluations_before_the_steady_state_are_the_longest_phase_if_they_are_that_of_the_run(
    tmp_path: Path, testing_s: float, headline: str, stretch: str
) -> None:
    """A public log of 393 steps spent 46% of 11 hours in three evaluations, all before its steady state."""
    slower = {"timing_s/gen": 6.0, "timing_s/step": 11.5}
    rows = [SYNC | (slower if step > 60 else {}) for step in range(1, 120)]
    rows[19]["timing_s/testing"] = rows[39]["timing_s/testing"] = testing_s
    (tmp_path / "a.log").write_text("".join(verl_line(step, row) for step, row in enumerate(rows, 1)))
    analysis = analyze(tmp_path / "a.log", page=False)
    assert verdict_words.headline(analysis).startswith(headline)
    assert verdict_words.why(analysis).startswith(f"{stretch}, the same GPUs sample and train in turn: ")
    assert ("evaluate less often" in verdict_words.next_step(analysis)) is (testing_s > 300.0)


def test_time_that_a_framework_does_not_name_is_looked_up_before_it_is_shortened(tmp_path: Path) -> None:
    other = {"timing_s/dump_rollout_generations": 5.0}
    metrics = {"timing_s/gen": 2.0, **other, "timing_s/update_actor": 3.0, "timing_s/step": 10.0}
    next_step = verdict_words.next_step(analyze(console(tmp_path / "a.log", range(9), metrics), page=False))
    assert next_step.startswith("To go faster, look up what the trainer does in this time")
    # 10 s without 5 s: twice the throughput.
    assert "other recorded activity off the critical path would multiply throughput by 2." in next_step


def test_settings_of_an_echoed_command_count_where_no_config_is_printed(tmp_path: Path) -> None:
    command = "+ python3 -m verl.trainer.main_ppo trainer.n_gpus_per_node=4 data.train_batch_size=16 \\\n"
    rest = "    actor_rollout_ref.rollout.n=2 \\\n    +trainer.nnodes=2\nWARNING: retries=3\n"
    imported_to(tmp_path / "run", console(tmp_path / "a.log", range(2), SYNC, command + rest))
    assert asked(tmp_path / "run", "SELECT gpu_count FROM workers") == [(8,)]
    with open_run(tmp_path / "run") as run:
        assert (run.config.samples_per_step, run.config.group_size) == (32, 2)
    imported_to(tmp_path / "both", console(tmp_path / "b.log", range(2), ASYNC, command + rest + CONFIG))
    assert asked(tmp_path / "both", "SELECT gpu_count FROM workers WHERE role = 'trainer'") == [(8,)]
    with open_run(tmp_path / "both") as run:
        assert run.config.group_size == 4
