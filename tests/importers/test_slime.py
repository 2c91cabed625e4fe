"""The console of slime and miles: what train_wait holds does not count as waiting; SGLang's lines share the clock."""

import json
from pathlib import Path

import pytest

from rlscope.importers.sglang import SGLANG_LOG
from rlscope.trace.imported import Certainty
from tests.importers.filling import NS, SLIME_CONSOLE, Filled, asked, fill, importing, ledger_s

SEPARATE = """  actor_num_nodes ................................. 1
  actor_num_gpus_per_node ......................... 4
  rollout_num_gpus ................................ 8
  rollout_num_gpus_per_engine ..................... 2
  colocate ........................................ False
  rollout_batch_size .............................. 8
  n_samples_per_prompt ............................ 4
"""
COLOCATED = SEPARATE.replace("False", "True")


def stamp(at_s: float, milliseconds: bool) -> str:
    minutes, seconds = divmod(at_s, 60)
    whole = f"2026-03-26 01:{int(minutes):02d}:{int(seconds):02d}"
    return whole + (f".{round(1000 * (at_s % 1)):03d} actor_0" if milliseconds else "")


def start(at_s: float, name: str, milliseconds: bool = True) -> str:
    return (
        f"(MegatronTrainRayActor pid=7, ip=10.0.0.1) [{stamp(at_s, milliseconds)}] timer.py:24 - Timer {name} start\n"
    )


def end(at_s: float, name: str, elapsed_s: float, milliseconds: bool = True) -> str:
    text = f"Timer {name} end (elapsed: {elapsed_s:.1f}s)"
    return f"(MegatronTrainRayActor pid=7, ip=10.0.0.1) [{stamp(at_s, milliseconds)}] timer.py:32 - {text}\n"


def facts(at_s: float, kind: str, number: int, text: str) -> str:
    return f"(RolloutManager pid=8, ip=10.0.0.1) [{stamp(at_s, True)}] metrics.py:268 - {kind} {number}: {{{text}}}\n"


def step(first_s: float, number: int) -> list[str]:
    """A rollout of 30 s that the trainer waits for, 10 s of training, 3 s of publishing."""

    def timed(name: str, start_s: float, end_s: float) -> list[str]:
        return [start(first_s + start_s, name), end(first_s + end_s, name, end_s - start_s)]

    def said(at_s: float, kind: str, text: str) -> str:
        return facts(first_s + at_s, kind, number, text)

    return [
        said(30, "perf", "'perf/rollout_time': 30.0, 'perf/longest_sample_tokens_per_sec': np.float64(9.5)"),
        said(
            30,
            "rollout",
            "'rollout/raw_reward': np.float32(0.25), 'rollout/truncated_ratio': 0.125, 'rollout/n': 'a: 1'",
        ),
        end(first_s + 30, "train_wait", 30.0),
        start(first_s + 30, "train"),
        *timed("data_preprocess", 30, 31),
        *timed("log_probs", 31, 35),
        *timed("actor_train", 35, 45),
        end(first_s + 45, "train", 15.0),
        start(first_s + 45, "train_wait"),
        said(45, "step", "'train/loss': -0.125, 'train/grad_norm': 0.5"),
        said(45, "perf", "'perf/actor_train_time': 10.0, 'perf/actor_train_tok_per_s': 1000.0"),
        *timed("update_weights", 45, 48),
    ]


def run_lines(settings: str, steps: int = 2) -> list[str]:
    """The first weights, and steps of 46 s."""
    first = [settings, start(0, "update_weights"), end(2, "update_weights", 2.0), start(2, "train_wait")]
    return [*first, *(line for number in range(steps) for line in step(2 + 46.0 * number, number))]


imported = importing("job.log", SLIME_CONSOLE, utc_offset_s=0)
FIXTURE = Path(__file__).parent / "fixtures" / "slime"


@pytest.fixture(scope="module")
def separate(tmp_path_factory: pytest.TempPathFactory) -> Filled:
    """Two steps of a run whose rollouts have GPUs of their own."""
    return imported(tmp_path_factory.mktemp("separate"), *run_lines(SEPARATE))


def test_lines_of_slime_s_own_timers_say_what_the_hooks_recorded(tmp_path: Path) -> None:
    """The bound of docs/importers.md: each phase within 1% of the time that the steps took."""
    recorded = json.loads((FIXTURE / "recorded.json").read_text())
    run = fill(tmp_path / "run", (FIXTURE / "job.log", SLIME_CONSOLE), utc_offset_s=0)
    states = ledger_s(run.folder)["actor"]
    for state in ("waiting_for_samples", "train", "checkpoint"):
        assert states.get(state, 0.0) == pytest.approx(recorded[state], abs=0.01 * sum(states.values())), state
    assert len(run.rows("train_steps")) == recorded["steps"]


def test_the_trainer_waits_for_what_of_train_wait_no_other_timer_claims(separate: Filled) -> None:
    states = {name: seconds / 4 for name, seconds in ledger_s(separate.folder)["actor"].items()}
    # The second wait of 31 s holds 3 s of publishing; the last one has not ended.
    assert states == pytest.approx(
        {
            "waiting_for_samples": 30.0 + 28.0,
            "train": 20.0,
            "logprobs": 8.0,
            "other": 2.0,
            "publishing_weights": 2.0 + 3.0 + 3.0,
        }
    )


def test_the_parts_of_an_update_that_miles_times_are_recorded(tmp_path: Path) -> None:
    """`update_weight_from_distributed/mixin.py` of miles, August 2026. Between its start and 1 s, engines pause."""
    lines = [
        start(10, "update_weights"),
        start(11, "update_weights_implementation"),
        end(14, "update_weights_implementation", 3.0),
        start(14, "finalize_and_resume_engines"),
        end(14.5, "finalize_and_resume_engines", 0.5),
        end(14.5, "update_weights", 4.5),
    ]
    run = imported(tmp_path, *run_lines(SEPARATE, steps=1)[:3], *lines)
    origin_ns = min(row["start_ns"] for row in run.rows("weight_updates"))
    updates = [span for span in run.spans_s("actor", origin_ns) if span[1] >= 10]
    assert updates == [("publish", 10.0, 14.5), ("transfer", 11.0, 14.0), ("resume", 14.0, 14.5)]
    versions = {row["version"] for row in run.rows("weight_updates") if row["phase"] in ("transfer", "resume")}
    assert len(versions) == 1


def test_samplers_generate_until_the_numbers_of_a_rollout_are_printed_and_else_have_no_requests(
    separate: Filled,
) -> None:
    generated = [end_s - start_s for name, start_s, end_s in separate.spans_s("rollout") if name == "generate"]
    assert generated == [pytest.approx(30.0)] * 2
    states = {name: seconds / 8 for name, seconds in ledger_s(separate.folder)["rollout"].items()}
    # 16 s from the end of one rollout to the start of the next; in the last of them weights are applied.
    assert (states["generating"], states["no_requests"]) == (pytest.approx(60.0), pytest.approx(15.0))
    assert separate.imported.tables["activities"].certainty is Certainty.INFERRED


def test_what_a_pass_costs_is_said_to_be_unknown_only_without_the_engines_lines(tmp_path: Path) -> None:
    alone = imported(tmp_path / "a", *run_lines(SEPARATE))
    assert any("--engine-log" in note for note in alone.imported.notes)
    log = tmp_path / "engine-0.log"
    log.write_text("".join(engine(1, 10, 16)))
    joined = fill(tmp_path / "b", (tmp_path / "a" / "job.log", SLIME_CONSOLE), (log, SGLANG_LOG), utc_offset_s=0)
    assert not any("--engine-log" in note for note in joined.imported.notes)


def test_steps_have_their_versions_tokens_and_results(separate: Filled) -> None:
    """Every update is a publication, and the first is version 1."""
    steps = separate.rows("train_steps")
    assert [(row["step"], row["version_in"], row["version_out"]) for row in steps] == [(0, 1, 2), (1, 2, 3)]
    named = ("tokens", "samples", "loss", "grad_norm", "reward_mean", "truncated_ratio")
    assert {tuple(row[name] for name in named) for row in steps} == {(10_000, 32, -0.125, 0.5, 0.25, 0.125)}
    updates = [(row["phase"], row["version"]) for row in separate.rows("weight_updates")]
    assert sorted(updates) == [(phase, version) for phase in ("apply", "publish") for version in (1, 2, 3)]


@pytest.mark.parametrize(
    ("settings", "more"), [(COLOCATED, []), (SEPARATE, [start(94, "sleep"), end(94.5, "sleep", 0.5)])]
)
def test_gpus_that_are_shared_generate_while_they_do_not_train(tmp_path: Path, settings: str, more: list[str]) -> None:
    """The settings show that they are, or the timers of making room for each other."""
    run = imported(tmp_path, *run_lines(settings), *more)
    states = {name: seconds / 4 for name, seconds in ledger_s(run.folder)["actor"].items()}
    assert states["generating"] == pytest.approx(58.0)
    assert states["applying_weights"] == pytest.approx(8.0)
    assert "rollout" not in ledger_s(run.folder)


@pytest.mark.parametrize(
    ("lines", "spans"),
    [
        (
            [(10.0, 14.4, "log_probs"), (14.4, 20.9, "actor_train")],
            [("logprobs", 0.0, 4.4), ("train_step", 4.4, 10.9)],
        ),
        # It may have begun late in the second of its start: 0.3 s from 5.9 on ends in another second.
        ([(2.0, 5.9, "data_preprocess"), (5.9, 6.2, "actor_train")], [("other", 0.0, 3.9), ("train_step", 3.9, 4.2)]),
    ],
)
def test_timers_in_stamps_of_whole_seconds_last_as_long_as_they_say(
    tmp_path: Path, lines: list[tuple[float, float, str]], spans: list[tuple[str, float, float]]
) -> None:
    printed = [
        line
        for began, ended, name in lines
        for line in (start(began, name, False), end(ended, name, ended - began, False))
    ]
    run = imported(tmp_path, SEPARATE, *printed)
    found = run.spans_s("actor", run.rows("activities")[0]["start_ns"])
    assert found == [(name, pytest.approx(began), pytest.approx(ended)) for name, began, ended in spans]


def engine(pid: int, from_s: int, to_s: int) -> list[str]:
    return [
        f"(SGLangEngine pid={pid}) [{stamp(second, False)} TP0] Decode batch, #running-req: 4,"
        f" #token: {1_000 + 160 * second}, token usage: 0.04, gen throughput (token/s): 160.00, #queue-req: 0,\n"
        for second in range(from_s, to_s)
    ]


def lives_s(run: Filled) -> dict[str, tuple[int, float, float]]:
    """GPUs, start and end of each worker, in seconds after the first one started."""
    known = [json.loads(path.read_text()) for path in sorted((run.folder / "workers").iterdir())]
    first_ns = min(each["started_ns"] for each in known)
    return {
        each["worker_id"]: (
            each["gpu_count"],
            (each["started_ns"] - first_ns) / NS,
            (each["stopped_ns"] - first_ns) / NS,
        )
        for each in known
    }


def test_the_engines_of_the_same_log_share_its_clock_and_the_rollouts_gpus(tmp_path: Path) -> None:
    run = imported(tmp_path, *run_lines(SEPARATE), *engine(1, 10, 16), *engine(2, 10, 16))
    # Eight GPUs for two engines, from the first update of weights to the last.
    engines = dict.fromkeys(("SGLangEngine-1", "SGLangEngine-2"), (4, 0.0, 96.0))
    assert lives_s(run) == {**engines, "actor": (4, 0.0, 96.0), "rollout": (0, 0.0, 96.0)}
    rows = [row for row in run.rows("engine_steps") if row["worker_id"] == "SGLangEngine-1"]
    assert len(rows) == 5
    # Weights that the rollouts applied were applied by each engine.
    applied = [row["worker_id"] for row in run.rows("weight_updates") if row["phase"] == "apply"]
    assert applied.count("SGLangEngine-1") == 3
    assert rows[0]["end_ns"] // NS % 60 in (11, 12)


@pytest.mark.parametrize(
    ("settings", "refusal"), [(SEPARATE, "the files cover 56% of SGLangEngine-1"), (COLOCATED, None)]
)
def test_lines_that_ray_merged_cost_the_verdict_only_where_engines_have_gpus_of_their_own(
    tmp_path: Path, settings: str, refusal: str | None
) -> None:
    """Ray merges them by default (a log of miles, 2026-04). The time of shared GPUs is that of the trainer's timers."""
    lines = engine(1, 10, 16)
    lines[2] = f"{lines[2].strip()}\x1b[32m [repeated 5x across cluster]\x1b[0m\n"
    run = imported(tmp_path, *run_lines(settings), *lines)
    assert run.imported.refusal == refusal
    assert "Ray merged 4 lines into others in job.log. Set RAY_DEDUP_LOGS=0" in " ".join(run.imported.notes)


def test_an_engine_that_logs_only_after_another_has_ended_is_in_its_place(tmp_path: Path) -> None:
    """The third engine is the second one, started again."""
    lines = run_lines(SEPARATE)
    run = imported(tmp_path, *lines, *engine(1, 10, 90), *engine(2, 10, 40), *engine(3, 60, 90))
    lives = lives_s(run)
    assert lives["SGLangEngine-1"] == (4, 0.0, 96.0)
    assert lives["SGLangEngine-2"] == (4, 0.0, lives["SGLangEngine-3"][1])
    assert lives["SGLangEngine-3"] == (4, pytest.approx(60, abs=1), 96.0)
    applied = [row["worker_id"] for row in run.rows("weight_updates") if row["phase"] == "apply"]
    # Two of the three updates came before the third engine.
    assert [applied.count(f"SGLangEngine-{pid}") for pid in (1, 2, 3)] == [3, 2, 1]
    assert any(note.startswith("1 engine logs only after another has ended") for note in run.imported.notes)


def test_the_engines_of_a_resumed_run_are_in_the_places_of_those_before(tmp_path: Path) -> None:
    again = [*run_lines("", 1), *engine(3, 10, 46), *engine(4, 10, 46)]
    resumed = [line.replace(" 01:", " 09:").replace("pid=7,", "pid=70,") for line in again]
    run = imported(tmp_path, *run_lines(SEPARATE, 1), *engine(1, 10, 46), *engine(2, 10, 46), *resumed)
    first, second = (4, 0.0, 50.0), (4, 50.0, 100.0)
    engines = [lives_s(run)[f"SGLangEngine-{pid}"] for pid in (1, 2, 3, 4)]
    assert engines == [first, first, second, second]
    of = "SELECT version, start_ns FROM weight_updates WHERE worker_id = '{}' AND phase = '{}' ORDER BY 1"
    published = asked(run.folder, of.format("actor", "publish"))
    applied = [asked(run.folder, of.format(f"SGLangEngine-{pid}", "apply")) for pid in (1, 3)]
    assert published == [*applied[0], *applied[1]]
    assert len(published) == 4


def test_staleness_that_miles_prints_is_kept_as_reported(tmp_path: Path) -> None:
    lines = [*step(0.0, 1), facts(50.0, "rollout", 2, "'rollout/fully_async/avg_staleness': 1.5, 'rollout/other': 2.0")]
    log = tmp_path / "job.log"
    log.write_text(SEPARATE + "".join(lines))
    rows = fill(tmp_path / "run", (log, SLIME_CONSOLE)).rows("reported")
    found = [(row["step"], row["name"], row["value"]) for row in rows]
    assert (2, "rollout/fully_async/avg_staleness", 1.5) in found
    assert (1, "perf/actor_train_tok_per_s", 1000.0) in found
    assert not any(name in ("rollout/other", "rollout/raw_reward") for _, name, _ in found)


@pytest.mark.parametrize(
    ("is_cut", "trainings", "workers"),
    [
        (False, 0, ["actor", "actor-2"]),
        (False, 1, ["actor"]),
        (True, 1, ["actor", "actor-2"]),
        (True, 2, ["actor"]),
    ],
)
def test_actors_that_print_after_the_first_training_are_of_a_resumed_run(
    tmp_path: Path, is_cut: bool, trainings: int, workers: list[str]
) -> None:
    """What trains beside the actor prints before that, or before its second one if the log lacks its beginning."""
    # The last training is killed before its results are printed and its weights are sent.
    killed = run_lines(SEPARATE, trainings)[: -4 if trainings else None]
    resumed = [
        line.replace(" 01:", " 09:").replace("pid=7", "pid=70").replace("(0.25)", "(0.75)") for line in run_lines("", 1)
    ]
    run = imported(tmp_path, *killed[4 if is_cut else 0 :], *resumed)
    is_resumed = workers == ["actor"]
    assert sorted(path.stem for path in (run.folder / "workers").iterdir()) == [*workers, "rollout"]
    assert any("The time between them is left out" in note for note in run.imported.notes) is is_resumed
    trained = run.rows("train_steps")
    assert len(trained) == trainings + is_resumed
    if is_resumed:
        assert [row["reward_mean"] for row in trained] == [0.25] * trainings + [0.75]
        # The trainer's 47 s until it was killed are followed by those of the next run.
        assert (trained[-1]["start_ns"] - trained[-2]["start_ns"]) / NS == 47.0


def test_an_actor_that_prints_again_is_of_the_run_before(tmp_path: Path) -> None:
    """Two lines name another process, as of a critic that was late."""
    lines = run_lines(SEPARATE, 3)
    strays = [line.replace("pid=7", "pid=70") for line in (start(70, "log_probs"), end(71, "log_probs", 1.0))]
    run = imported(tmp_path, *lines[:26], strays[0], *lines[26:40], strays[1], *lines[40:])
    assert [(row["worker_id"], row["step"]) for row in run.rows("train_steps")] == [
        ("actor", step) for step in range(3)
    ]
    assert sorted(path.stem for path in (run.folder / "workers").iterdir()) == ["actor", "actor-2", "rollout"]
