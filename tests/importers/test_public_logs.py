"""Logs that other people published: rows in the same form with other numbers, and the sums worked out by hand.

Each case names the source of the form, with the date of the text that was read.
"""

import json
from pathlib import Path

import pytest

from rlscope.api import analyze
from rlscope.errors import ImportFileError
from rlscope.importers.join import import_run
from rlscope.importers.options import import_options
from rlscope.reports.text import verdict as verdict_words
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


VERL_PHASES = "timing_s/gen:41.25 - timing_s/ref:2.5 - timing_s/update_actor:12.0 - timing_s/step:55.75"
CONFIG = """(TaskRunner pid=7) {'actor_rollout_ref': {'rollout': {'n': 4, 'nnodes': 1,
(TaskRunner pid=7)                                    'n_gpus_per_node': 6}},
(TaskRunner pid=7)  'trainer': {'n_gpus_per_node': 8, 'nnodes': 1}}
"""


@pytest.mark.parametrize(
    "prefix",
    [
        "2026-03-04T05:06:07.123456789Z ",
        "2026-03-04T05:06:07.123456789Z stdout F ",
        "[pod/trainer-0/main] ",
        "trainer-1  | ",
        "train.log:12:",
        "0: ",
        "> ",
        "    ",
        "\x1b[36m(main_task pid=77, ip=10.0.0.2)\x1b[0m ",
    ],
)
def test_what_a_log_collector_puts_before_each_line_does_not_hide_the_config(tmp_path: Path, prefix: str) -> None:
    """The config says that samplers have GPUs of their own. Without it, the steps would be those of shared GPUs."""
    text = CONFIG + "".join(verl(step, VERL_PHASES) for step in (1, 2, 3))
    imported(tmp_path, "".join(f"{prefix}{line}\n" for line in text.splitlines()))
    assert asked(tmp_path / "run", "SELECT role, gpu_count FROM workers ORDER BY role") == [
        ("sampler", 6),
        ("trainer", 8),
    ]
    assert spent_s(tmp_path / "run") == {
        "trainer samples": 123.75,
        "sampler generate": 123.75,
        "trainer logprobs": 7.5,
        "trainer train": 36.0,
    }


@pytest.mark.parametrize(
    ("cut", "joined"),
    [
        # A page of llm-d (2026) has each metric on a line of its own, behind `step:1`.
        (" - ", "\n - "),
        # A page of verl about NPUs (2025) breaks the line before a metric, and indents the rest.
        ("- timing_s/ref", "\n    - timing_s/ref"),
        # verl issue 7412 (2026-08) was copied from a terminal, which cut inside numbers and names.
        ("41.25", "4\n1.25"),
        ("41.25", "41\n.25"),
        ("timing_s/gen", "timin\ng_s/gen"),
        ("timing_s/ref", "\ntiming_s/ref"),
        ("55.75", "55\n.75"),
        ("55.75", "55.\n75"),
    ],
)
def test_a_line_that_was_wrapped_is_read_as_one(tmp_path: Path, cut: str, joined: str) -> None:
    text = "".join(verl(step, VERL_PHASES) for step in (44, 45)).replace(cut, joined)
    assert imported(tmp_path, text).framework == "verl"
    assert spent_s(tmp_path / "run") == {"trainer generate": 82.5, "trainer logprobs": 5.0, "trainer train": 24.0}
    assert asked(tmp_path / "run", "SELECT step FROM train_steps ORDER BY step") == [(44,), (45,)]
    assert length_s(tmp_path / "run") == 111.5


@pytest.mark.parametrize("line", ["{name}: {value}", "(Runner pid=9) wandb: {name:>30} {value}   "])
def test_metrics_listed_one_a_line_are_read(tmp_path: Path, line: str) -> None:
    """Reports list them so (2026), and the W&B client at the end of a run: issue 24 of forks of EasyR1 (2025)."""
    values = {"timing_s/gen": 72.0, "timing_s/old": 36.5, "timing_s/update_actor": 119.5, "timing_s/step": 228.0}
    text = "".join(line.format(name=name, value=value) + "\n" for name, value in values.items())
    assert imported(tmp_path, "Run summary:\n" + text).refusal is None
    assert spent_s(tmp_path / "run") == {"trainer generate": 72.0, "trainer logprobs": 36.5, "trainer train": 119.5}


def test_the_metrics_of_two_frameworks_in_one_log_are_refused_with_both_names(tmp_path: Path) -> None:
    verl_s = "timing_s/gen: 72.0\ntiming_s/update_actor: 119.5\ntiming_s/step: 228.0\n"
    skyrl_s = "timing/generate: 60.0\ntiming/sync_weights: 5.0\ntiming/step: 100.0\n"
    with pytest.raises(ImportFileError, match=r"SkyRL and step metrics of verl; .*Pass --as skyrl or --as verl"):
        imported(tmp_path, verl_s + skyrl_s)


@pytest.mark.parametrize(
    "lead",
    [
        "(MegatronTrainRayActor pid=9) [2026-04-02 10:12:12] train_metric_utils.py:50 - ",
        "relax.utils.training.train_metric_utils:47 ",
        "",
    ],
)
def test_slime_s_metrics_are_read_without_its_timers(tmp_path: Path, lead: str) -> None:
    """Pages of llm-d and miles (2026) quote such lines, and tests of other repositories those of Relax, a fork."""
    text = ""
    for step in (448, 449):
        perf = {"perf/train_wait_time": 75.0, "perf/actor_train_time": 10.0, "perf/step_time": 90.0}
        text += f"rollout {step}: {{'rollout/raw_reward': np.float64(0.25)}}\n"
        text += f"model.py:660 - step {step}: {{'train/loss': 0.125, 'train/grad_norm': 0.5, ...}}\n"
        text += f"{lead}perf {step}: {perf | {'perf/update_weights_fully_async_time': 5.0}}\n"
    assert imported(tmp_path, text).framework == "slime"
    spent = spent_s(tmp_path / "run")
    assert {name: each for name, each in spent.items() if name.startswith("trainer")} == {
        "trainer samples": 150.0,
        "trainer train": 20.0,
        "trainer publish": 10.0,
    }
    assert asked(tmp_path / "run", "SELECT step FROM train_steps ORDER BY step") == [(448,), (449,)]
    assert asked(tmp_path / "run", "SELECT DISTINCT loss, grad_norm, reward_mean FROM train_steps") == [
        (0.125, 0.5, 0.25)
    ]


def test_slime_s_metrics_over_several_lines_show_that_the_gpus_are_shared(tmp_path: Path) -> None:
    """A page about slime's metrics (2026), from a run that sleeps while it trains: 347.5 = 5.5 + 2.5 + 339.5."""
    values = {"sleep": 5.5, "update_weights": 2.5, "train_wait": 347.5, "actor_train": 47.0, "step": 394.5}
    text = "{\n" + "".join(f"    'perf/{name}_time': {each},\n" for name, each in values.items()) + "}\n"
    imported(tmp_path, text)
    assert asked(tmp_path / "run", "SELECT role FROM workers") == [("colocated",)]
    assert spent_s(tmp_path / "run") == {
        "trainer weight_update": 5.5,
        "trainer publish": 2.5,
        "trainer generate": 339.5,
        "trainer train": 47.0,
    }


def test_areal_s_table_is_read_without_the_line_above_it(tmp_path: Path) -> None:
    """Rows that tests of other repositories quote from AReaL's logs of July 2026."""
    text = (
        "│ timeperf/rollout │ 9.0e+01 │ ppo_actor/update/lr │ 5e-06 │\n│ timeperf/train_step   │  3.15e+01 │ other │\n"
    )
    assert imported(tmp_path, text).framework == "areal"
    assert spent_s(tmp_path / "run") == {"trainer samples": 90.0, "sampler generate": 90.0, "trainer train": 31.5}


def test_metrics_behind_an_unknown_text_are_read(tmp_path: Path) -> None:
    """Marin's fork of SkyRL (2026) mirrors what it sends to W&B. The checkpoint lies outside the step."""
    phases = '"timing/generate": 60.0, "timing/train_critic_and_policy": 35.0, "timing/sync_weights": 5.0'
    text = "".join(
        f'WANDB_MIRROR kind=train step={step} metrics={{"trainer/global_step": {step}, "timing/step": 100.0, '
        f'{phases}, "timing/save_checkpoints": 45.0}}\n'
        for step in (7, 8)
    )
    assert imported(tmp_path, text).framework == "skyrl"
    assert asked(tmp_path / "run", "SELECT step FROM train_steps ORDER BY step") == [(7,), (8,)]
    assert length_s(tmp_path / "run") == 2 * (100.0 + 45.0)


def test_a_crash_lists_the_settings_of_the_command(tmp_path: Path) -> None:
    """Hydra does so at the end of a log: a Slurm log of verl (2026-01-08) and a page about TinyZero (2025-08-10)."""
    crash = "Error executing job with overrides: ['data.train_batch_size=16', '+trainer.n_gpus_per_node=4', 'a.b=c']\n"
    text = verl(4, VERL_PHASES)
    imported(tmp_path, text + crash.replace("]", ", 'trainer.nnodes=2', 'actor_rollout_ref.rollout.n=2']"))
    assert asked(tmp_path / "run", "SELECT gpu_count FROM workers") == [(8,)]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        # prime-rl at 559b4477 (2026-08-21), and its pull request 1630 (2026-01).
        ("10:00:03 SUCCESS Step 1 |    1m 3s | Reward 0.35 | Turns 1.0\n", "a console log of prime-rl .*run folder"),
        (
            "16:43:08 SUCCESS Step 5 | Time: 5.23s | Reward: 0.3 | Async Level: 1\n",
            r"a console log of prime-rl .*Pass the run folder, whose metrics\.jsonl",
        ),
        # Issue 24 of simpleRL-reason (2025-02), which trains with OpenRLHF.
        (
            "Train epoch [1/1]:  21%|##| 841/4096 [1:03:43<4:06:33, 4.5s/it, pg=-0.1, rm=0.2, glen=770, act_lr=2e-8]\n",
            "a console log of OpenRLHF .*release of 2026",
        ),
        (
            "Train | Step:  1  perf/trainer/tokens_per_second_full_step: 812.5  loss/mean: 0.42\n",
            r"console log of torchtitan .*Pass its W&B or TensorBoard files",
        ),
        # As it is copied from a terminal, with spaces where the progress bar was.
        (
            " " * 40 + "{'loss': 0.1, 'completions/mean_length': 142.7, 'reward': 1.8, 'epoch': 0.1}\n",
            r"console log of TRL .*Pass a run folder that `trl_grpo\.instrument\(trainer\)` recorded",
        ),
        # open-instruct at e6c3044a (2026-08-20).
        ("╭──── Metrics ────╮\n│  time  total: 120.5 | training: 60.1 │\n", r"open-instruct .*the \.wandb file"),
        # Dictionaries that were cut short: a page about OpenRLHF (2026), and issue 1864 of SkyRL (2026-07), of slime.
        (
            "(PPOTrainer) Global step 1: {'reward': 0.5, 'policy_loss': 0.0, 'timing/ppo_train': 5.04, ...}\n",
            "look like OpenRLHF, 3 of 3 keys, but no step times; expected also `timing/step_total`",
        ),
        (
            "model.py:660 - step 1: {'train/loss': 0.1, 'train/pg_loss': 0.0, 'train/ppo_kl': -0.2, ...}\n",
            "look like slime or miles, 3 of 3 keys, but no step times; expected also `perf/actor_train_time`",
        ),
    ],
)
def test_a_log_without_phases_is_refused_with_its_name_and_the_file_to_pass(
    tmp_path: Path, text: str, found: str
) -> None:
    with pytest.raises(ImportFileError, match=found):
        imported(tmp_path, text)


DEEPSPEED_CHAT = "".join(
    f"|E2E latency=12.50s |Gather latency=0.00s (0.00%) |Generate time={generated}s (60.00%) |Training time=4.00s\n"
    f"Epoch: 0 | Step: {step} | PPO Epoch: 1 | Actor Loss: 0.1\n"
    for step, generated in enumerate((7.5, 7.25, 7.0))
)


def test_the_durations_of_deepspeed_chat_are_listed_and_can_be_named(tmp_path: Path) -> None:
    """Lines of DeepSpeed's hybrid engine (2023), and the step that its trainer prints after them."""
    durations = "E2E latency, Gather latency, Generate time, Training time"
    with pytest.raises(ImportFileError, match=f"with the durations {durations}; .*--phases"):
        imported(tmp_path, DEEPSPEED_CHAT)
    options = import_options(phases="step=E2E latency,generate=Generate time,train=Training time")
    import_run(tmp_path / "a.log", tmp_path / "run", options)
    assert spent_s(tmp_path / "run") == {"trainer generate": 21.75, "trainer train": 12.0}
    assert asked(tmp_path / "run", "SELECT step FROM train_steps ORDER BY step") == [(0,), (1,), (2,)]


@pytest.mark.parametrize(("steps", "is_short"), [(1, True), (2, True), (3, False)])
def test_a_few_quoted_steps_need_a_longer_log(tmp_path: Path, steps: int, is_short: bool) -> None:
    (tmp_path / "a.log").write_text("".join(verl(step, VERL_PHASES) for step in range(steps)))
    next_step = verdict_words.next_step(analyze(tmp_path / "a.log", page=False))
    assert ("Pass a longer part of the log, with 3 training steps or more." in next_step) is is_short


def pipelinerl(waited_s: float, step: int) -> str:
    """One line of its trainer, which counts the wait from the start of the run and rounds metrics to texts."""
    values = {"stats/time_waiting_for_data": f"{waited_s:.3f}", "throughput/sec_per_step": "10.000", "rl/loss": "nan"}
    return f"[2025-06-13 09:51:18,123][pipelinerl.finetune.logging_][INFO] - Completed steps {step}: {values}\n"


@pytest.mark.parametrize(
    ("lines", "samples_s", "train_s"),
    [
        # Waits of 4, 6 and 5 s in each three steps; the trainer does something else in 6, 4 and 5 s.
        ([(4.0, 1), (10.0, 2), (15.0, 3), (19.0, 4), (25.0, 5), (30.0, 6)], 30.0, 30.0),
        # A log that is cut off: what its first line counts began before it.
        ([(904.0, 101), (910.0, 102), (915.0, 103)], 11.0, 9.0),
        # Each second step is logged: a row has the time of its own step, and the waits of two.
        ([(4.0, 1), (12.0, 3), (26.0, 5)], 4.0 + 4.0 + 7.0, 6.0 + 6.0 + 3.0),
        # The run was resumed, and counts anew.
        ([(4.0, 1), (10.0, 2), (5.0, 3), (9.0, 4)], 4.0 + 6.0 + 5.0 + 4.0, 6.0 + 4.0 + 5.0 + 6.0),
    ],
)
def test_pipelinerl_s_wait_is_what_each_step_adds_to_it(
    tmp_path: Path, lines: list[tuple[float, int]], samples_s: float, train_s: float
) -> None:
    """`finetune_loop.py` and `logging_.py` of ServiceNow/PipelineRL at 58d39345 (2026-06-19)."""
    read = imported(tmp_path, "".join(pipelinerl(waited_s, step) for waited_s, step in lines))
    assert not any("exceed the step" in reason for reason in read.no_verdict)
    spent = spent_s(tmp_path / "run")
    assert (spent["trainer samples"], spent["trainer train"]) == (samples_s, train_s)


def roll(step: int, times: dict[str, float], file: str = "agentic_pipeline.py") -> str:
    row = {"critic/score/mean": 0.5, "system/step": step, **{f"time/{name}": each for name, each in times.items()}}
    return f"[2026-02-03 10:00:0{step}] [{file} (612)] [INFO] [DRIVER 0 / 1][PID 77] {json.dumps(row)}\n"


def test_roll_s_agentic_runs_evaluate_beside_the_rollout(tmp_path: Path) -> None:
    """`agentic_pipeline.py` of alibaba/ROLL at 8eb27cc2 (2026-08-19): a thread evaluates, and the rest is waited for.

    Step 4 takes 1 + 40 + (55 - 40) + 20 + 5 s. The console prints no total, because it prints before that is known.
    """
    times = {"step_model_update": 1.0, "step_rollout": 40.0, "step_train": 20.0}
    last = times | {"step_val": 55.0, "actor_train/do_checkpoint/total": 5.0}
    text = "rollout_batch_size: 64\n" + roll(3, times | {"step_val": 30.0}) + roll(4, last)
    assert imported(tmp_path, text).refusal is None
    assert asked(tmp_path / "run", "SELECT step FROM train_steps ORDER BY step") == [(3,), (4,)]
    assert spent_s(tmp_path / "run") == {
        "trainer publish": 2.0,
        "trainer generate": 80.0,
        "trainer eval": 15.0,
        "trainer train": 40.0,
        "trainer checkpoint": 5.0,
    }
    assert length_s(tmp_path / "run") == 61.0 + 81.0


@pytest.mark.parametrize(
    ("config", "takes", "is_refused"),
    [
        # The config that ROLL prints as YAML; a synchronous run leaves its default out.
        ("rollout_batch_size: 64\nasync_generation_ratio: 1\n", "samples", False),
        ("rollout_batch_size: 64\nasync_generation_ratio: 0.5\n", "samples", False),
        ("rollout_batch_size: 64\nasync_generation_ratio: 0\n", "generate", False),
        ("rollout_batch_size: 64\n", "generate", False),
        # A log without its head looks the same in both.
        ("", "generate", True),
    ],
)
def test_roll_s_config_tells_whether_the_trainer_generates_or_waits(
    tmp_path: Path, config: str, takes: str, is_refused: bool
) -> None:
    """`base_config.py` and the start scripts of alibaba/ROLL at 8eb27cc2 (2026-08-19)."""
    times = {"step_generate": 30.0, "step_train": 10.0, "step_model_update": 2.0}
    read = imported(tmp_path, config + roll(1, times, "rlvr_pipeline.py") + roll(2, times, "rlvr_pipeline.py"))
    assert (
        any("pass --gpus colocated=N or --gpus trainer=N,sampler=N" in each for each in read.no_verdict) is is_refused
    )
    assert spent_s(tmp_path / "run")[f"trainer {takes}"] == 60.0


@pytest.mark.parametrize(
    ("times", "train_s"),
    [
        # grpo_fast.py at e6c3044a (2026-08-20): a batch is taken and weights are sent inside the training of 50 s.
        ({"trainer_waiting_for_data": 20.0, "training": 50.0, "weight_sync": 4.0, "saving": 6.0}, 50.0 - 20.0 - 4.0),
        # The same in releases before May 2026.
        ({"trainer_idle_waiting_for_inference": 20.0, "training": 50.0, "weight_sync": 4.0, "saving": 6.0}, 26.0),
        # grpo.py at e6c3044a: the training begins with the batch, and the weights are sent after it.
        ({"trainer_waiting_for_data": 20.0, "training": 26.0, "weight_sync": 4.0}, 26.0),
        # grpo_fast.py at the end of October 2025: the main thread waits 24 s, and weights are sent during the first 4.
        ({"trainer_idling": 24.0, "training": 26.0, "weight_sync": 4.0, "saving": 6.0}, 26.0),
    ],
)
def test_open_instruct_s_training_is_counted_without_the_wait_and_the_weight_sync(
    tmp_path: Path, times: dict[str, float], train_s: float
) -> None:
    total_s = 20.0 + 26.0 + 4.0 + times.get("saving", 0.0)
    metrics = {f"time/{name}": seconds for name, seconds in (times | {"total": total_s}).items()}
    text = "".join(json.dumps({"_step": step, "training_step": step, **metrics}) + "\n" for step in (1, 2))
    assert imported(tmp_path, text, "a.jsonl").refusal is None
    saved = {"trainer checkpoint": 12.0} if "saving" in times else {}
    assert spent_s(tmp_path / "run") == saved | {
        "trainer samples": 40.0,
        "sampler generate": 40.0,
        "trainer train": 2 * train_s,
        "trainer publish": 8.0,
        "sampler apply": 8.0,
    }
    assert length_s(tmp_path / "run") == 2 * total_s


def tinker(step: int, times: dict[str, float]) -> str:
    """One row of its metrics.jsonl."""
    rewards = {"env/all/reward/total": 0.25, "env/all/total_episodes": 768, "optim/entropy": 0.5}
    times = {f"time/{name}": seconds for name, seconds in times.items()}
    return json.dumps({"step": step, "progress/batch": step, **rewards, **times}) + "\n"


TINKER_STEP = {"assemble_training_data": 1.0, "compute_kl_sample_train": 0.5, "save_checkpoint": 16.0}


@pytest.mark.parametrize(
    "times",
    [
        # Two runs that HarleyCoops/Qwen3-RailroadEngineer1959-RL kept (e67fb98f, November 2025): sampling is the rest.
        TINKER_STEP | {"train": 30.0, "run_evals": 87.0, "total": 200.0},
        # tinker-cookbook at 9dfcc3a2 (2026-08-19): the second of the times of training contains the first.
        TINKER_STEP
        | {"train_step": 30.0, "do_train_step_and_get_sampling_client": 47.5, "run_evaluations_parallel": 87.0}
        | {"sampling": 65.5, "do_group_rollout_and_filter_constant_reward:total": 3000.0, "total": 200.0},
    ],
)
def test_the_tinker_cookbook_s_sampling_is_timed_or_the_rest_of_the_step(
    tmp_path: Path, times: dict[str, float]
) -> None:
    """200 - 87 - 1 - 30 - 0.5 - 16 = 65.5 s of sampling in a step that evaluates; 113 s is one that does not."""
    evaluation = {"run_evals", "run_evaluations_parallel"}
    plain = {name: each for name, each in times.items() if name not in evaluation} | {"total": 113.0}
    read = imported(tmp_path, tinker(0, times) + tinker(1, plain) + tinker(2, plain), "metrics.jsonl")
    assert (read.framework, read.refusal) == ("tinker-cookbook", None)
    assert spent_s(tmp_path / "run") == {
        "trainer eval": 87.0,
        "trainer samples": 3 * 65.5,
        "sampler generate": 3 * 65.5,
        "trainer other": 3 * 1.5,
        "trainer train": 3 * 30.0,
        "trainer publish": 3 * 16.0,
        "sampler apply": 3 * 16.0,
    }
    assert asked(tmp_path / "run", "SELECT DISTINCT reward_mean, samples, entropy FROM train_steps") == [
        (0.25, 768, 0.5)
    ]
    assert length_s(tmp_path / "run") == 200.0 + 2 * 113.0


def test_the_tinker_cookbook_s_asynchronous_runs_are_refused_because_they_do_not_time_the_wait(tmp_path: Path) -> None:
    times = TINKER_STEP | {"train_step": 30.0, "sampling_time_mean": 90.0, "total": 48.0}
    text = tinker(0, times).replace("progress/batch", "training_client/step")
    with pytest.raises(ImportFileError, match=r"look like Tinker cookbook, 10 of 10 keys, .*also `time/sampling`"):
        imported(tmp_path, text, "metrics.jsonl")


@pytest.mark.parametrize(
    "prefix",
    ["", "2025-11-25T10:11:12.123456789Z ", "2025-11-25T10:11:12.123456789Z stdout F ", "[pod/forge-0/main] ", "[0] "],
)
def test_torchforge_s_metrics_are_read_behind_a_collector_s_time(tmp_path: Path, prefix: str) -> None:
    """Issue 372 (2025-10) and pull request 606 (2025-11) of meta-pytorch/torchforge. 225 = 197 + 8 + 14 + 0 + 6."""
    parts = {"waiting_for_buffer": 197.0, "train_step": 8.0, "push_weights": 14.0, "drop_weights": 6.0}
    lines: list[str] = []
    for step in (3, 4):
        lines.append(f"=== [global_logger_2aeC_r0] - METRICS STEP {step} ===")
        lines += ["  buffer/sample/max_sampled_policy_age: 1.0", "  rl_trainer/avg_grpo_loss: 1.25e-06"]
        lines += [f"  main_perf/continuous_training/{name}/duration_avg_s: {each}" for name, each in parts.items()]
        lines += ["  main_perf/continuous_training/total_duration_avg_s: 225.0", "=" * 30]
    read = imported(tmp_path, "".join(f"{prefix}{line}\n" for line in lines))
    assert (read.framework, read.refusal) == ("torchforge", None)
    assert {name: each for name, each in spent_s(tmp_path / "run").items() if name.startswith("trainer")} == {
        "trainer samples": 394.0,
        "trainer train": 16.0,
        "trainer weight_update": 28.0,
        "trainer other": 12.0,
    }
    assert asked(tmp_path / "run", "SELECT step, loss FROM train_steps ORDER BY step") == [(3, 1.25e-06), (4, 1.25e-06)]


@pytest.mark.parametrize(
    ("name", "line", "seen"),
    [
        # oat's learner, as sail-sg/oat names its times (2026).
        (
            "a.jsonl",
            '{"_step": 1, "misc/elapse": 900.0, "train/learn_batch_time": 30.0, "actor/generate_time": 40.0}',
            "3 metrics of no framework that rlscope knows: actor/generate_time, train/learn_batch_time, misc/elapse",
        ),
        (
            "a.log",
            "(Learner pid=8) step 1 learn_batch_time: 30.0, generate_time: 40.0",
            "a log of no framework that rlscope knows, with the durations generate_time, learn_batch_time;",
        ),
    ],
)
def test_the_log_of_another_framework_is_refused_with_the_durations_that_it_has(
    tmp_path: Path, name: str, line: str, seen: str
) -> None:
    with pytest.raises(ImportFileError, match=f"{seen}.*--phases"):
        imported(tmp_path, 3 * f"{line}\n", name)


def test_areal_s_engines_that_make_room_for_the_trainer_share_its_gpus(tmp_path: Path) -> None:
    """`rl_trainer.py` of AReaL at 4aef98d8 (2026-05-21), with actor and rollout on the same GPUs, and a critic."""
    times = {"rollout_onload": 2.0, "rollout": 60.0, "rollout_offload": 3.0, "teacher_logp": 4.0, "train_step": 20.0}
    times |= {"critic_train_step": 10.0, "update_weights": 1.0}
    cells = "".join(f"\u2502 timeperf/{name} \u2502 {seconds:.4e} \u2502\n" for name, seconds in times.items())
    imported(tmp_path, "".join(f"StatsLogger INFO: Train step {step}/9 done.\n{cells}" for step in (1, 2)))
    assert asked(tmp_path / "run", "SELECT role FROM workers") == [("colocated",)]
    assert spent_s(tmp_path / "run") == {
        "trainer weight_update": 10.0,
        "trainer generate": 120.0,
        "trainer logprobs": 8.0,
        "trainer train": 20.0 + 40.0,
        "trainer publish": 2.0,
    }


def test_nemo_rl_s_value_model_is_trained_and_queried_apart_from_the_policy(tmp_path: Path) -> None:
    """`ppo.py` of NVIDIA-NeMo/RL at 7ea279ab (2026-08-22). The step also has 1 s that nothing times."""
    times = {"exposed_generation": 40.0, "value_inference": 5.0, "value_training_prep": 1.0, "value_training": 12.0}
    times |= {"policy_training": 30.0, "weight_sync": 8.0, "policy_offload_after_refit": 3.0, "total_step_time": 100.0}
    rows = ({"step": step, **{f"timing/train/{name}": each for name, each in times.items()}} for step in (1, 2))
    assert imported(tmp_path, "".join(json.dumps(row) + "\n" for row in rows), "a.jsonl").refusal is None
    assert {name: each for name, each in spent_s(tmp_path / "run").items() if name.startswith("trainer")} == {
        "trainer samples": 80.0,
        "trainer logprobs": 10.0,
        "trainer other": 2.0 + 6.0,
        "trainer train": 24.0 + 60.0,
        "trainer publish": 16.0,
    }
    assert asked(tmp_path / "run", "SELECT (end_ns - start_ns) / 1e9 FROM train_steps") == [(30.0,), (30.0,)]


def test_skyrl_s_critic_is_trained_inside_the_time_of_the_policy(tmp_path: Path) -> None:
    """`trainer.py` of NovaSky-AI/SkyRL at a9564572 (2026-08-21): 100 s of both, of which 35 s are the critic's."""
    times = {"generate": 60.0, "apply_reward_kl_penalty": 1.0, "train_critic_and_policy": 100.0, "critic_train": 35.0}
    times |= {"policy_train": 65.0, "sync_weights": 4.0, "step": 165.0}
    rows = ({"step": step, **{f"timing/{name}": each for name, each in times.items()}} for step in (1, 2))
    imported(tmp_path, "".join(json.dumps(row) + "\n" for row in rows), "a.jsonl")
    assert spent_s(tmp_path / "run") == {
        "trainer generate": 120.0,
        "trainer other": 2.0,
        "trainer train": 70.0 + 130.0,
        "trainer publish": 8.0,
    }
    assert asked(tmp_path / "run", "SELECT (end_ns - start_ns) / 1e9 FROM train_steps") == [(65.0,), (65.0,)]


@pytest.mark.parametrize("has_times", [True, False])
def test_prime_rl_s_earlier_trainer_saves_the_weights_and_computes_log_probabilities(
    tmp_path: Path, has_times: bool
) -> None:
    """`train.py` of prime-rl at 4620e257 (2025-10-09): the weights are saved for the engines before the step.

    Rows with times are those of its metrics.jsonl; without, those of another logger.
    """
    times = {"save_weights": 6.0, "wait_for_batch": 40.0, "load_data": 1.0, "compute_logprobs": 9.0}
    metrics = {f"time/{name}": each for name, each in (times | {"forward_backward": 30.0, "step": 80.0}).items()}
    rows = ({"step": step, **({"time": 1.76e9 + 86 * step} if has_times else {}), **metrics} for step in (1, 2, 3))
    imported(tmp_path, "".join(json.dumps(row) + "\n" for row in rows), "a.jsonl")
    assert {name: each for name, each in spent_s(tmp_path / "run").items() if name.startswith("trainer")} == {
        "trainer publish": 18.0,
        "trainer samples": 120.0,
        "trainer other": 3.0,
        "trainer logprobs": 27.0,
        "trainer train": 90.0,
    }


XTUNER_SHARED = """{lead}Train step {step}/20
Train step {step} finished and timing listed:
 - produce_batch            : 80.00s
 - onload                   : 3.00s
 - prepare_data             : 1.00s
 - training                 : 30.00s
 - save_ckpt                : 2.00s
 - suspend_train_nccl       : 0.50s
 - sync_weight              : 6.00s
{evaluation} - step                     : {total:.2f}s
Train step {step} data statistics:
- rewards/mean             : 0.2500
- response_len/mean        : 512.0000

Train step {step} throughput statistics:
- effective_tgs            : 1024.0000
"""


@pytest.mark.parametrize("prefix", ["", "(RLColocateTrainer pid=7) ", "2026-08-21T10:11:12.123456789Z stdout F "])
def test_xtuner_s_list_of_a_step_s_times_is_read(tmp_path: Path, prefix: str) -> None:
    """`rl_trainer.py` of InternLM/xtuner at 52996934 (2026-08-21). 80 + 3 + 1 + 30 + 2 + 6 = 122, and 1 s is not timed.

    What suspends NCCL lies inside the weight update.
    """
    lead, evaluation = "[XTuner][2026-08-21 10:11:12][INFO] ", " - evaluation               : 40.00s\n"
    text = XTUNER_SHARED.format(lead=lead, step=1, evaluation="", total=123)
    text += XTUNER_SHARED.format(lead=lead, step=2, evaluation=evaluation, total=163)
    read = imported(tmp_path, "".join(f"{prefix}{line}\n" for line in text.splitlines()))
    assert (read.framework, read.refusal) == ("xtuner", None)
    assert asked(tmp_path / "run", "SELECT role FROM workers") == [("colocated",)]
    assert spent_s(tmp_path / "run") == {
        "trainer generate": 160.0,
        "trainer weight_update": 6.0,
        "trainer other": 2.0,
        "trainer train": 60.0,
        "trainer checkpoint": 4.0,
        "trainer apply": 12.0,
        "trainer eval": 40.0,
    }
    assert length_s(tmp_path / "run") == 123.0 + 163.0
    assert asked(tmp_path / "run", "SELECT step, reward_mean FROM train_steps ORDER BY 1") == [(1, 0.25), (2, 0.25)]


XTUNER_SEPARATE = {"get_batch": 50.0, "prepare_data": 1.0, "training": 30.0, "pause_produce": 4.0, "sync_weight": 6.0}


def test_xtuner_s_trainer_with_gpus_of_its_own_waits_for_its_batch(tmp_path: Path) -> None:
    """Its list on the console, and the same numbers in `tracker.jsonl`: 50 + 1 + 30 + 4 + 6 = 91 s."""
    listed, rows = "", ""
    for step in (1, 2):
        times = {**XTUNER_SEPARATE, "step": 91.0}
        listed += f"Train step {step} finished and timing listed:\n"
        listed += "".join(f" - {name:<25}: {each:.2f}s\n" for name, each in times.items())
        rows += json.dumps({"step": step, **{f"time/{name}": each for name, each in times.items()}}) + "\n"
    for folder, text, name in (("listed", listed, "a.log"), ("rows", rows, "tracker.jsonl")):
        (tmp_path / folder).mkdir()
        assert imported(tmp_path / folder, text, name).framework == "xtuner"
        assert spent_s(tmp_path / folder / "run") == {
            "trainer samples": 100.0,
            "sampler generate": 100.0,
            "trainer other": 2.0,
            "trainer train": 60.0,
            "trainer barrier": 8.0,
            "trainer publish": 12.0,
            "sampler apply": 12.0,
        }
        assert length_s(tmp_path / folder / "run") == 182.0


@pytest.mark.parametrize(
    ("wait", "train", "rest", "left_s"),
    [
        # The distributed queue of August 2026: 20 + 70 + 4 of 95 s.
        ("time/step_collect_batch_s", "time/step_backend_train_s", {"time/step_post_train_backpressure_s": 4.0}, 1.0),
        ("time/step_trainer_idle_s", "time/step_backend_train_s", {}, 5.0),
        # Releases before June 2026.
        ("throughput/step_trainer_idle_s", "time/step_trainer_s", {}, 5.0),
    ],
)
def test_art_s_pipeline_waits_for_a_batch_and_trains_on_it(
    tmp_path: Path, wait: str, train: str, rest: dict[str, float], left_s: float
) -> None:
    """`history.jsonl` of OpenPipe/ART's `PipelineTrainer` (2026): times of three steps, written every 95 s."""
    text = ""
    for step, at in enumerate(("10:11:35", "10:13:10", "10:14:45"), 1):
        times = {"time/step_wall_s": 95.0, "time/cum/wall_s": 95.0 * step, wait: 20.0, train: 70.0, **rest}
        recorded = {"recorded_at": f"2026-08-21T{at}.000000", "training_step": step}
        text += json.dumps({"step": step, "train/reward": 0.25, "loss/train": -0.5, **times, **recorded}) + "\n"
        text += json.dumps({"step": step, "val/reward": 0.5, "time/step_eval_s": 30.0, "training_step": step}) + "\n"
    read = imported(tmp_path, text, "history.jsonl")
    assert (read.framework, read.refusal) == ("art", None)
    other = {"trainer other": 12.0} if rest else {}
    assert spent_s(tmp_path / "run") == other | {
        "trainer samples": 60.0,
        "sampler generate": 60.0,
        "trainer train": 210.0,
    }
    assert length_s(tmp_path / "run") == pytest.approx(3 * (20.0 + 70.0 + sum(rest.values()) + left_s))
    assert asked(tmp_path / "run", "SELECT DISTINCT reward_mean, loss FROM train_steps") == [(0.25, -0.5)]
    (started,) = asked(tmp_path / "run", "SELECT started_ns / 1e9 FROM workers WHERE worker_id = 'trainer'")[0]
    assert started == 1_787_307_095.0 - 95.0, "2026-08-21T10:11:35 in UTC, less the step"


def test_trinity_rft_s_trainer_is_read_apart_from_its_explorer(tmp_path: Path) -> None:
    """Trinity-RFT's `monitor.py` (2026): both print the steps that they count. verl's times lie inside `train_step`.

    The second step also updates the explorer and saves: 20 + 30, and 20 + 30 + 5 + 8.
    """
    inner = "'timing_s/ref': 6.0, 'timing_s/adv': 0.5, 'timing_s/update_actor': 23.0, 'timing_s/step': 29.75"
    shared = "'time/read_experience': 20.0, 'sample/model_version/mean': np.float64(1.0), 'actor/final_loss': 0.125, "
    after = "'time/sync_weight': 5.0, 'time/save_checkpoint': 8.0"
    steps = (f"Step 1: {{{shared}{inner}, 'time/train_step': 30.0}}",
             f"Step 2: {{{shared}{inner}, 'time/train_step': 30.0, {after}}}",
             "Step 2: {'rollout/model_version': 1, 'time/wait_explore_step': 44.0, 'time/eval': 99.0}")  # fmt: skip
    text = "".join(f"(Trainer pid=8) INFO 08-21 10:11:12 [monitor.py:177] {each}\n" for each in steps)
    read = imported(tmp_path, text)
    assert (read.framework, read.refusal) == ("trinity-rft", None)
    assert spent_s(tmp_path / "run") == {
        "trainer samples": 40.0,
        "sampler generate": 40.0,
        "trainer logprobs": 12.0,
        "trainer train": 48.0,
        "trainer publish": 5.0,
        "sampler apply": 5.0,
        "trainer checkpoint": 8.0,
    }
    assert length_s(tmp_path / "run") == 50.0 + 63.0
    assert asked(tmp_path / "run", "SELECT step, loss FROM train_steps ORDER BY 1") == [(1, 0.125), (2, 0.125)]


def test_trinity_rft_s_critic_is_no_sign_of_verl_s_trainer(tmp_path: Path) -> None:
    times = "'timing_s/values': 4.0, 'timing_s/update_critic': 10.0, 'timing_s/update_actor': 15.0"
    line = f"Step {{}}: {{{{'time/read_experience': 20.0, {times}, 'timing_s/step': 29.5, 'time/train_step': 30.0}}}}\n"
    assert imported(tmp_path, line.format(1) + line.format(2)).framework == "trinity-rft"
    spent = spent_s(tmp_path / "run")
    assert (spent["trainer logprobs"], spent["trainer train"]) == (8.0, 20.0 + 32.0)


@pytest.mark.parametrize("step_s", ["perf/step_time_s", "perf/rollout_time_s"])
@pytest.mark.parametrize(("length", "is_refused"), [({"rollout/response_len_mean": 700.0}, False), ({}, True)])
def test_unirl_s_phases_are_of_its_rollout_and_its_losses_of_another_step(
    tmp_path: Path, step_s: str, length: dict[str, float], is_refused: bool
) -> None:
    """Tencent-Hunyuan/UniRL's `wandb_logger.py` at 1a7b501e and 0bd34ab4 (2026): a row for rewards, one for each update
    of the optimizer, and one for times. 3 + 5 + 60 + 2 + 4 + 40 = 114 of 115 s. Only rows of language models have
    lengths; those of diffusion models may be of separate GPUs.
    """
    times = {"wake_up": 3.0, "weight_sync": 5.0, "generate": 60.0, "sleep": 2.0, "reward": 4.0, "train": 40.0}
    rows, at = list[dict[str, float]](), 0
    for step in (1, 2):
        perf = {f"perf/{name}_time_s": each for name, each in times.items()}
        group = [{"rollout/step": step, "rollout/reward_mean": 0.25 * step, **length}]
        group += [{"train/step": 2 * step - 1, "train/loss": 9.0}, {"train/step": 2 * step, "train/loss": 9.0}]
        group += [{"rollout/step": step, step_s: 115.0, **perf}]
        for each in group:
            rows.append({"_step": at, "_timestamp": 1.78e9 + 115.0 * step, **each})
            at += 1
    read = imported(tmp_path, "".join(json.dumps(row) + "\n" for row in rows), "a.jsonl")
    assert read.framework == "unirl"
    assert (
        any("pass --gpus colocated=N or --gpus trainer=N,sampler=N" in each for each in read.no_verdict) is is_refused
    )
    assert spent_s(tmp_path / "run") == {
        "trainer weight_update": 10.0,
        "trainer publish": 10.0,
        "trainer generate": 120.0,
        "trainer reward": 8.0,
        "trainer train": 80.0,
    }
    assert length_s(tmp_path / "run") == 230.0
    assert asked(tmp_path / "run", "SELECT step, reward_mean, loss FROM train_steps ORDER BY 1") == [
        (1, 0.25, None),
        (2, 0.5, None),
    ]
