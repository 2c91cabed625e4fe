"""Logs that other people published: rows in the same form with other numbers, and the sums worked out by hand.

Each case names the source of the form, with the date of the text that was read.
"""

from pathlib import Path

import pytest

from rlscope.importers.join import import_run
from rlscope.trace.imported import Imported
from tests.importers.filling import asked, spent_s


def imported(tmp_path: Path, text: str, name: str = "a.log") -> Imported:
    (tmp_path / name).write_text(text, encoding="utf-8")
    return import_run(tmp_path / name, tmp_path / "run")


def length_s(folder: Path) -> float:
    """How long the trainer ran."""
    (row,) = asked(folder, "SELECT (stopped_ns - started_ns) / 1e9 FROM workers WHERE worker_id = 'trainer'")
    return row[0]


def verl(step: int, phases: str) -> str:
    return f"(TaskRunner pid=7) step:{step} - training/global_step:{step} - {phases}\n"


@pytest.mark.parametrize(
    ("step_s", "length"),
    [
        # The timer of the step ends before: 20 + 20 + 15 + 5.
        (20.0, 60.0),
        # It includes both, as in earlier releases: 20 + 40.
        (40.0, 60.0),
    ],
)
def test_verl_s_evaluation_and_checkpoint_count_inside_the_step_or_after_it(
    tmp_path: Path, step_s: float, length: float
) -> None:
    """A notebook with a console log of verl's PPO demo of late 2025 (steps 71 to 81), read in November 2026."""
    phases = "timing_s/gen:12.0 - timing_s/update_actor:8.0"
    text = verl(1, f"{phases} - timing_s/step:20.0")
    text += verl(2, f"{phases} - timing_s/step:{step_s} - timing_s/testing:15.0 - timing_s/save_checkpoint:5.0")
    assert imported(tmp_path, text).refusal is None
    assert spent_s(tmp_path / "run") == {
        "trainer generate": 24.0,
        "trainer train": 16.0,
        "trainer eval": 15.0,
        "trainer checkpoint": 5.0,
    }
    assert length_s(tmp_path / "run") == length


def test_evaluation_may_lie_outside_the_step_while_publications_lie_inside(tmp_path: Path) -> None:
    phases = "timing_s/gen:12.0 - timing_s/update_actor:6.0 - timing_s/timing_s/param_sync:2.0 - timing_s/step:20.0"
    imported(tmp_path, verl(1, phases) + verl(2, f"{phases} - timing_s/testing:15.0"))
    assert length_s(tmp_path / "run") == 20.0 + 20.0 + 15.0
    assert spent_s(tmp_path / "run")["trainer eval"] == 15.0


def test_easyr1_s_names_of_verl_s_phases_are_known(tmp_path: Path) -> None:
    """`experiment_log.jsonl` of hiyouga/EasyR1 at b44b311b (2026-07-30): verl's names, nested, with some of its own."""
    text = "".join(
        f'{{"step": {step}, "reward": {{"overall": 0.5}}, "timing_s": {{"gen": 24.0, "old": 4.0, "ref": 3.0, '
        '"update_actor": 9.0, "validation": 10.0, "step": 50.0}}\n'
        for step in (1, 2)
    )
    assert imported(tmp_path, text, "experiment_log.jsonl").refusal is None
    assert spent_s(tmp_path / "run") == {
        "trainer generate": 48.0,
        "trainer logprobs": 14.0,
        "trainer train": 18.0,
        "trainer eval": 20.0,
    }
    assert asked(tmp_path / "run", "SELECT reward_mean FROM train_steps") == [(0.5,), (0.5,)]


def test_steps_that_train_only_the_critic_are_read(tmp_path: Path) -> None:
    """A Slurm log of verl with environments and `trainer.critic_warmup` (2026-01-08): no generation, no actor."""
    phases = "timing_s/old_log_prob:11.0 - timing_s/values:33.0 - timing_s/update_critic:116.0 - timing_s/step:161.0"
    imported(tmp_path, verl(4, phases))
    assert spent_s(tmp_path / "run") == {"trainer logprobs": 44.0, "trainer train": 116.0}
    assert length_s(tmp_path / "run") == 161.0


def nemo_rl(total_s: float, generation_s: float, training_s: float, loss: float, heading: str = "") -> str:
    return f"""{heading}
📊 Training Results:
  • Loss: {loss:.4f}
  • Avg Reward: 0.0000

⏱️  Timing:
  • Total step time: {total_s:.2f}s
  • exposed_generation: {generation_s:.2f}s (50.0%)
  • policy_training: {training_s:.2f}s (48.0%)
  • weight_sync: {total_s - generation_s - training_s:.2f}s (2.0%)
"""


def test_blocks_without_a_heading_are_steps(tmp_path: Path) -> None:
    """Pull request 1052 of NVIDIA-NeMo/RL (2025-09-03) quotes one such block, and a page about NeMo-RL on GKE another.

    The single controller of NeMo-RL prints no headings (7ea279ab, 2026-08-22). Zero is a loss and a reward.
    """
    blocks = nemo_rl(20, 10, 9, 0.0), nemo_rl(30, 18, 10, 0.25), nemo_rl(40, 20, 18, 0.5)
    assert imported(tmp_path, "".join(blocks)).framework == "nemo-rl"
    rows = "SELECT step, (end_ns - start_ns) / 1e9, loss, reward_mean FROM train_steps ORDER BY 1"
    assert asked(tmp_path / "run", rows) == [(1, 9.0, 0.0, 0.0), (2, 10.0, 0.25, 0.0), (3, 18.0, 0.5, 0.0)]
    spent = spent_s(tmp_path / "run")
    assert (spent["policy samples"], spent["policy publish"]) == (48.0, 1.0 + 2.0 + 2.0)


def test_the_first_block_of_a_log_that_is_cut_off_is_the_step_before_the_next_one(tmp_path: Path) -> None:
    imported(tmp_path, nemo_rl(20, 10, 9, 0.5) + nemo_rl(20, 10, 9, 0.25, "===== Step 37/100 ====="))
    assert asked(tmp_path / "run", "SELECT step, loss FROM train_steps ORDER BY 1") == [(36, 0.5), (37, 0.25)]


def test_a_validation_before_the_first_heading_is_no_step(tmp_path: Path) -> None:
    before = "📊 Validation Results:\n    • Total validation time: 12.00s\n"
    imported(tmp_path, before + nemo_rl(20, 10, 9, 0.5, "===== Step 1/2 ====="))
    assert asked(tmp_path / "run", "SELECT step FROM train_steps") == [(1,)]
    assert "policy eval" not in spent_s(tmp_path / "run")
