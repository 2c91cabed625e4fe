"""SkyRL's console: timers with stamps to the millisecond, results printed after their step, and who generates where."""

from pathlib import Path

import pytest

from rlscope.trace.imported import Certainty
from tests.importers.filling import SKYRL_CONSOLE, importing, ledger_s

COLOCATED = "trainer.placement.policy_num_gpus_per_node=4 colocate_all=true\n"
SEPARATE = "'policy_num_gpus_per_node': 4, 'colocate_all': False, 'num_engines': 2, 'tensor_parallel_size': 2\n"


def timer(at_s: float, what: str, name: str, cost_s: float | None = None) -> str:
    """A line as loguru prints it below Ray's driver, at_s after midnight."""
    minutes, seconds = divmod(at_s, 60)
    cost = "" if cost_s is None else f", time cost: {cost_s:.2f}s"
    return (
        f"\x1b[36m(skyrl_entrypoint pid=7)\x1b[0m 2026-03-26 00:{int(minutes):02d}:{seconds:06.3f} | INFO     |"
        f" skyrl.train.trainer:train:261 - {what}: '{name}'{cost}\n"
    )


def timed(name: str, start_s: float, end_s: float) -> list[str]:
    return [timer(start_s, "Started", name), timer(end_s, "Finished", name, end_s - start_s)]


STEP = [
    timer(0.0, "Started", "step"),
    *timed("generate", 0.0, 40.0),
    *timed("convert_to_training_input", 40.0, 41.0),
    "(skyrl_entrypoint pid=7) ... - batch_num_seq: 64, batch_padded_seq_len: 1172\n",
    *timed("fwd_logprobs_values_reward", 41.0, 51.0),
    "(skyrl_entrypoint pid=7) ... - avg_final_rewards: 0.25, avg_response_length: 273.6\n",
    timer(51.0, "Started", "train_critic_and_policy"),
    *timed("policy_train", 51.0, 71.0),
    timer(71.0, "Finished", "train_critic_and_policy", 20.0),
    *timed("sync_weights", 71.0, 76.0),
    timer(80.0, "Finished", "step", 80.0),
    "(skyrl_entrypoint pid=7) ... - {'policy_loss': -0.125, 'policy_entropy': 0.5, 'grad_norm': 0.375}\n",
]
imported = importing("driver.log", SKYRL_CONSOLE, utc_offset_s=0)


def test_a_colocated_step_has_every_phase_at_its_own_time(tmp_path: Path) -> None:
    run = imported(tmp_path, COLOCATED, *STEP)
    states = ledger_s(run.folder)["policy"]
    seconds = {name: value / 4 for name, value in states.items()}
    assert seconds == pytest.approx(
        {
            "generating": 40.0,
            "other": 1.0,
            "logprobs": 10.0,
            "train": 20.0,
            "applying_weights": 5.0,
            "unattributed": 4.0,
        }
    )
    assert run.imported.tables["activities"].certainty is Certainty.RECORDED


def test_results_that_are_printed_after_the_step_belong_to_it(tmp_path: Path) -> None:
    (step,) = imported(tmp_path, COLOCATED, *STEP).rows("train_steps")
    assert (step["step"], step["version_in"], step["version_out"], step["samples"]) == (1, 0, 1, 64)
    assert (step["loss"], step["entropy"], step["grad_norm"], step["reward_mean"]) == (-0.125, 0.5, 0.375, 0.25)


@pytest.mark.parametrize(
    "printed",
    [
        pytest.param([line for line in STEP for _ in range(2)], id="line by line"),
        pytest.param([*STEP, *STEP], id="in batches"),
        pytest.param([line for each in STEP for line in (each, each.partition(" ")[2].partition(" ")[2])], id="bare"),
    ],
)
def test_a_line_that_two_handlers_print_counts_once(tmp_path: Path, printed: list[str]) -> None:
    (once,) = imported(tmp_path / "once", COLOCATED, *STEP).rows("train_steps")
    run = imported(tmp_path / "twice", COLOCATED, *printed)
    assert run.rows("train_steps") == [once]
    spans = run.spans_s("policy")
    assert len(spans) == len(set(spans))


@pytest.mark.parametrize(("between", "trainings"), [(63, 1), (64, 2)])
def test_a_copy_is_looked_for_among_the_last_64_lines_with_a_time(tmp_path: Path, between: int, trainings: int) -> None:
    line = timer(20.0, "Finished", "policy_train", 20.0)
    others = [timer(30.0 + index / 10, "Started", f"other_{index}") for index in range(between)]
    assert len(imported(tmp_path, line, *others, line).rows("train_steps")) == trainings


def test_the_weights_that_engines_start_with_are_version_0(tmp_path: Path) -> None:
    first = timed("sync_weights_to_inference_engines", 0.0, 1.0)
    later = [line.replace(" 00:00:", " 00:10:").replace(" 00:01:", " 00:11:") for line in STEP]
    run = imported(tmp_path, COLOCATED, *first, *later)
    assert [row["version"] for row in run.rows("weight_updates")] == [0, 1]


def test_an_asynchronous_run_waits_for_its_buffer_and_its_engines_generate(tmp_path: Path) -> None:
    lines = [
        SEPARATE,
        *timed("sync_weights", 0.0, 2.0),
        timer(2.0, "Started", "generate"),
        timer(3.0, "Started", "generate"),
        *timed("wait_for_generation_buffer", 2.0, 12.0),
        timer(12.5, "Finished", "generate", 9.5),
        *timed("policy_train", 12.0, 20.0),
        timer(20.5, "Finished", "generate", 18.5),
        *timed("sync_weights", 21.0, 22.0),
    ]
    run = imported(tmp_path, *lines)
    states = ledger_s(run.folder)
    assert states["policy"]["waiting_for_samples"] == pytest.approx(4 * 10.0)
    assert states["engines"]["generating"] == pytest.approx(4 * 18.5)
    assert states["engines"]["applying_weights"] == pytest.approx(4 * 3.0)
    assert run.imported.files[0].bad_lines == 0


def test_a_finish_without_its_start_began_its_cost_before(tmp_path: Path) -> None:
    run = imported(tmp_path, COLOCATED, timer(51.0, "Finished", "fwd_logprobs_values_reward", 10.0), *STEP[10:])
    (row,) = [row for row in run.rows("activities") if row["activity"] == "logprobs"]
    assert row["end_ns"] - row["start_ns"] == 10_000_000_000
    assert run.imported.files[0].bad_lines == 3
