"""NeMo-RL's console: phases placed in the order of the program, steps at the time stamps between them."""

from pathlib import Path

import pytest

from rlscope.trace.imported import Certainty
from tests.importers.filling import NEMO_RL_CONSOLE, NS, importing, ledger_s
from tests.importers.nemo_console import ASYNC_CONFIG, CONFIG, block, stamped

SYNC = {
    "generation": 33.0,
    "policy_training": 3.0,
    "prepare_for_generation/total": 2.0,
    "policy_and_reference_logprobs": 1.5,
    "prepare_for_generation/transfer_and_update_weights": 0.5,
    "policy_logprobs": 1.0,
    "reference_logprobs": 0.5,
    "data_processing": 0.25,
    "reward_calculation": 0.25,
}
imported = importing("driver.log", NEMO_RL_CONSOLE, origin_ns=1_000 * NS)


def test_phases_lie_in_the_order_of_the_program_and_what_lies_inside_another_is_not_added(tmp_path: Path) -> None:
    run = imported(tmp_path, CONFIG, block(1, 40.0, SYNC))
    assert run.spans_s("policy", 1_000 * NS) == [
        ("other", 0.0, 0.25),
        ("transfer", 0.25, 0.75),
        ("apply", 0.25, 2.25),
        ("generate", 2.25, 35.25),
        ("reward", 35.25, 35.5),
        ("logprobs", 35.5, 37.0),
        ("train_step", 37.0, 40.0),
    ]
    assert run.imported.tables["activities"].certainty is Certainty.PLACED
    assert run.imported.clock == "relative"


def test_distillation_has_a_weight_update_before_generation_and_a_teacher_after_it(tmp_path: Path) -> None:
    phases = {
        "generation": 20.0,
        "teacher_logprob_inference": 8.0,
        "policy_training": 6.0,
        "prepare_for_generation": 4.0,
        "teacher_logprob_inference_prep": 2.0,
    }
    assert imported(tmp_path, CONFIG, block(1, 40.0, phases)).spans_s("policy", 1_000 * NS) == [
        ("apply", 0.0, 4.0),
        ("generate", 4.0, 24.0),
        ("other", 24.0, 26.0),
        ("logprobs", 26.0, 34.0),
        ("train_step", 34.0, 40.0),
    ]


def test_the_validation_and_the_checkpoint_of_a_step_follow_its_training(tmp_path: Path) -> None:
    run = imported(tmp_path, CONFIG, block(10, 80.0, {**SYNC, "checkpointing": 5.0}, validation_s=30.0))
    assert run.spans_s("policy", 1_000 * NS)[-3:] == [
        ("train_step", 37.0, 40.0),
        ("eval", 40.0, 70.0),
        ("checkpoint", 70.0, 75.0),
    ]
    assert ledger_s(run.folder)["policy"]["unattributed"] == pytest.approx(8 * 5.0)


def test_a_training_step_has_its_tokens_by_the_throughput_and_its_results(tmp_path: Path) -> None:
    (step,) = imported(tmp_path, CONFIG, block(3, 40.0, SYNC)).rows("train_steps")
    assert (step["step"], step["version_in"], step["version_out"]) == (3, 1, 1)
    assert (step["samples"], step["tokens"], step["loss"], step["reward_mean"]) == (512, 400_000, -0.0042, 0.2656)


def test_a_step_starts_at_the_first_line_with_a_time_and_never_before_the_last_one_ended(tmp_path: Path) -> None:
    run = imported(
        tmp_path,
        CONFIG,
        block(1, 40.0, SYNC, engine=stamped("02-26 04:00:00")),
        # Ray prints merged lines late: their time is that of the step before.
        block(2, 40.0, SYNC, engine=stamped("02-26 04:00:10", merged=7) + "\n" + stamped("02-26 04:01:30")),
        block(3, 40.0, SYNC, engine=stamped("02-26 04:02:09")),
    )
    first = run.rows("activities")[0]["start_ns"]
    starts_s = [(row["start_ns"] - first) / NS - 37.0 for row in run.rows("train_steps")]
    assert starts_s == [0.0, 90.0, 130.0]
    assert any("50 s lie between steps" in note for note in run.imported.notes)
    # 50 s between the first steps, besides 0.25 s of data processing in each; the third follows the second at once.
    assert ledger_s(run.folder)["policy"].get("unattributed", 0.0) == pytest.approx(0.0)
    assert ledger_s(run.folder)["policy"]["other"] == pytest.approx(8 * (50.0 + 3 * 0.25))
    assert run.imported.tables["activities"].certainty is Certainty.INFERRED


def test_an_asynchronous_run_waits_for_samples_while_its_samplers_generate(tmp_path: Path) -> None:
    phases = {"exposed_generation": 12.0, "policy_training": 6.0, "weight_sync": 2.0, "idle/buffer_starvation": 11.0}
    run = imported(tmp_path, ASYNC_CONFIG, block(1, 20.0, phases))
    origin_ns = 1_000 * NS
    assert run.spans_s("policy", origin_ns) == [
        ("wait", 0.0, 12.0),
        ("train_step", 12.0, 18.0),
        ("publish", 18.0, 20.0),
    ]
    assert run.spans_s("generation", origin_ns) == [("generate", 0.0, 12.0), ("apply", 18.0, 20.0)]
    assert run.imported.tables["activities"].certainty is Certainty.INFERRED
    states = ledger_s(run.folder)
    assert states["policy"]["waiting_for_samples"] == pytest.approx(6 * 12.0)
    assert states["generation"]["generating"] == pytest.approx(2 * 12.0)


def test_gpus_come_from_the_throughputs_where_the_log_has_no_config(tmp_path: Path) -> None:
    run = imported(tmp_path, block(1, 40.0, SYNC))
    assert sum(ledger_s(run.folder)["policy"].values()) == pytest.approx(8 * 40.0)


def test_a_step_without_its_total_lowers_the_coverage(tmp_path: Path) -> None:
    broken = block(2, 40.0, SYNC).replace("  • Total step time: 40.00s\n", "")
    run = imported(tmp_path, CONFIG, block(1, 40.0, SYNC), broken, block(3, 40.0, SYNC))
    assert run.imported.coverage == {"policy": pytest.approx(2 / 3)}


def test_steps_that_each_epoch_counts_from_one_are_all_read(tmp_path: Path) -> None:
    """Two epochs of three steps. The run stopped after its fifth step and was resumed from that step."""
    one, two = (f"\n{'=' * 25} Epoch {epoch}/2 {'=' * 25}\n" for epoch in (1, 2))
    first, second, third = (block(step, 20.0, {"policy_training": 8.0}) for step in (1, 2, 3))
    again = block(2, 20.5, {"policy_training": 8.0})
    run = imported(tmp_path, CONFIG, one, first, second, third, two, first, second, CONFIG, two, again, third)
    assert [row["step"] for row in run.rows("train_steps")] == [1, 2, 3, 4, 5, 6]
    assert any("1 duplicate policy step in the file" in note for note in run.imported.notes)


def test_a_resumed_run_s_steps_count_once_and_the_time_before_them_is_nobody_s(tmp_path: Path) -> None:
    """Steps 1 to 3, the beginning of the fourth, and the run again from the second on, an hour later."""
    phases = {"generation": 12.0, "policy_training": 8.0}
    stamps = {(step, again): f"02-26 0{4 + again}:00:{20 * step:02d}" for step in (1, 2, 3) for again in (False, True)}
    first = [block(step, 20.0, phases, engine=stamped(stamps[step, False])) for step in (1, 2, 3)]
    again = [block(step, 20.5, phases, engine=stamped(stamps[step, True])) for step in (2, 3)]
    unfinished = block(4, 20.0, {}).partition("  • Total")[0]
    run = imported(tmp_path, CONFIG, *first, unfinished, *again)
    assert [row["step"] for row in run.rows("train_steps")] == [1, 2, 3]
    assert not [row for row in run.rows("activities") if row["activity"] == "other"]
    assert any("2 duplicate policy steps in the file" in note for note in run.imported.notes)
    # Of the four steps that the log begins, three are complete.
    assert run.imported.coverage == {"policy": 1.0} and run.imported.refusal is None
