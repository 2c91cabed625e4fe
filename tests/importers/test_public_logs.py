"""Logs that other people published: rows in the same form with other numbers, and the sums worked out by hand.

Each case names the source of the form, with the date of the text that was read.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from rlscope.api import analyze
from rlscope.errors import ImportFileError
from rlscope.importers.importer import HEAD_BYTES
from rlscope.importers.join import import_run
from rlscope.importers.options import import_options
from rlscope.reports.text import verdict as verdict_words
from rlscope.trace.imported import Imported
from tests.importers.filling import asked, spent_s, worker_s


def imported(tmp_path: Path, text: str, name: str = "a.log") -> Imported:
    (tmp_path / name).write_text(text, encoding="utf-8")
    return import_run(tmp_path / name, tmp_path / "run")


@dataclass(frozen=True)
class Log:
    """A log, and what is read of it."""

    framework: str
    text: str
    spent: dict[str, float]
    """Seconds of the trainer by what it did. It generates only where it shares its GPUs with the samplers."""
    length_s: float | None = None
    """How long the trainer ran; the sum of these seconds where it is not given."""
    steps: Mapping[str, Sequence[tuple[object, ...]]] = field(default_factory=dict[str, Sequence[tuple[object, ...]]])
    """Columns of training steps, and their rows."""
    name: str = "a.log"
    worker: str = "trainer"
    refusal: str | None = None
    """Words of the reason why there is no verdict; None if there is one."""


def verl(step: int, phases: str) -> str:
    return f"(TaskRunner pid=7) step:{step} - training/global_step:{step} - {phases}\n"


def rows(prefix: str, times: dict[str, float], *, first: int = 1, count: int = 2, **more: object) -> str:
    """JSON lines of steps that all take the same time."""
    metrics = {f"{prefix}{name}": seconds for name, seconds in times.items()}
    return "".join(json.dumps({"step": first + index, **more, **metrics}) + "\n" for index in range(count))


def told(prefix: str, phases: str) -> tuple[dict[str, float], dict[str, float]]:
    """Metrics, and what the trainer did, of phases as "metric seconds state"; no state where another has the time."""
    times: dict[str, float] = {}
    spent: dict[str, float] = {}
    for phase in phases.split(", "):
        name, seconds, *states = phase.split()
        times[f"{prefix}{name}"] = float(seconds)
        for state in states:
            spent[state] = spent.get(state, 0.0) + float(seconds)
    return times, spent


def verl_step(phases: str, length_s: float | None = None, prefix: str = "timing_s/") -> Log:
    """A step on verl's console."""
    times, spent = told(prefix, phases)
    return Log("verl", verl(1, " - ".join(f"{name}:{each}" for name, each in times.items())), spent, length_s)


def two_steps(framework: str, prefix: str, phases: str, length_s: float, worker: str = "trainer", **steps: Any) -> Log:
    """Two steps of these phases in a file of metrics."""
    times, spent = told(prefix, phases)
    doubled = {state: 2 * seconds for state, seconds in spent.items()}
    return Log(framework, rows(prefix="", times=times), doubled, 2 * length_s, steps, "a.jsonl", worker)


def verl_evaluates(step_s: float) -> Log:
    """Two steps, the second of which evaluates and saves."""
    phases = "timing_s/gen:12.0 - timing_s/update_actor:8.0"
    text = verl(1, f"{phases} - timing_s/step:20.0")
    text += verl(2, f"{phases} - timing_s/step:{step_s} - timing_s/testing:15.0 - timing_s/save_checkpoint:5.0")
    return Log("verl", text, {"generate": 24.0, "train": 16.0, "eval": 15.0, "checkpoint": 5.0})


VERL_PHASES = "timing_s/gen:41.25 - timing_s/ref:2.5 - timing_s/update_actor:12.0 - timing_s/step:55.75"
PUBLISHES = "timing_s/gen:12.0 - timing_s/update_actor:6.0 - timing_s/timing_s/param_sync:2.0 - timing_s/step:20.0"
EASYR1 = {"timing_s/gen": 72.0, "timing_s/old": 36.5, "timing_s/update_actor": 119.5, "timing_s/step": 228.0}
VERL_LOGS = {
    # A notebook with a console log of verl's PPO demo of late 2025 (steps 71 to 81), read in November 2026: the timer
    # of the step ends before both, 20 + 20 + 15 + 5. In earlier releases it includes both, 20 + 40.
    "evaluates after the step": verl_evaluates(20.0),
    "evaluates in the step": verl_evaluates(40.0),
    "publishes in the step and evaluates after it": Log(
        "verl",
        verl(1, PUBLISHES) + verl(2, f"{PUBLISHES} - timing_s/testing:15.0"),
        {"samples": 24.0, "train": 12.0, "publish": 4.0, "eval": 15.0},
        20.0 + 20.0 + 15.0,
    ),
    # `experiment_log.jsonl` of hiyouga/EasyR1 at b44b311b (2026-07-30): verl's names, nested, with some of its own.
    "EasyR1": Log(
        "verl",
        rows(
            "",
            {},
            reward={"overall": 0.5},
            timing_s={"gen": 24.0, "old": 4.0, "ref": 3.0, "update_actor": 9.0, "validation": 10.0, "step": 50.0},
        ),
        {"generate": 48.0, "logprobs": 14.0, "train": 18.0, "eval": 20.0},
        100.0,
        {"reward_mean": [(0.5,), (0.5,)]},
        "experiment_log.jsonl",
    ),
    # A Slurm log of verl with environments and `trainer.critic_warmup` (2026-01-08): no generation, no actor.
    "trains only the critic": verl_step(
        "old_log_prob 11 logprobs, values 33 logprobs, update_critic 116 train, step 161", 161.0
    ),
    # `ray_diffusion_trainer.py` of verl-project/verl-omni at a1139baf (2026-08-22), and its issue 498 about the time of
    # the teacher.
    "distills": verl_step(
        "gen 30 generate, old_log_prob 10 logprobs, teacher 20 logprobs, update_actor 40 train, step 100"
    ),
    # `agent_trainer.py` of mll-lab-nu/RAGEN at 20daedc (2026-04-14).
    "RAGEN": verl_step(
        "gen 40 generate, collapse_metrics 5 other, old_log_prob 10 logprobs, gradient_analysis 20 other, "
        "update_actor 25 train, step 100"
    ),
    # `prime_ray_trainer.py` of verl-project/verl-recipe at 48ea0a7 (2026-08-05).
    "PRIME": verl_step(
        "gen 30 generate, verify 15 reward, old_log_prob 10 logprobs, adv 5 reward, update_actor 40 train, step 100"
    ),
    # `ray_trainer.py` of the recipe GKD in verl-project/verl-recipe at 48ea0a7 (2026-08-05).
    "GKD": verl_step(
        "sync_rollout_weights 5 publish, wait_prev_gen 20 samples, wait_prev_teacher 30 barrier, "
        "update_actor 45 train, step 100"
    ),
    # `ray_trainer.py` of PRIME-RL/PRIME at 18ad596 (2025-03-18) and of PRIME-RL/SimpleVLA-RL at 7c51662 (2026-01-06),
    # whose issue 26 quotes such numbers. No metric holds the step.
    "PRIME and SimpleVLA-RL before the recipe": verl_step(
        "gen 60 generate, verify 3 reward, acc&trunc_filter 7 other, ref 5 logprobs, reward_model 10 reward, "
        "adv 1 reward, update_actor 14 train",
        prefix="timing/",
    ),
    # `agent_workflow_trainer.py` of rllm-org/rllm at 9beb6e0f (2026-08-15), which evaluates after the step.
    "rLLM's workflows": verl_step(
        "generate_trajectories 60 generate, update_actor 35 train, update_weights 5 publish, step 100, testing 15 eval"
    ),
    # Reports list metrics so (2026), and the W&B client at the end of a run: issue 24 of forks of EasyR1 (2025).
    "one metric a line": Log(
        "verl",
        "Run summary:\n" + "".join(f"{name}: {value}\n" for name, value in EASYR1.items()),
        {"generate": 72.0, "logprobs": 36.5, "train": 119.5},
    ),
    "summary of W&B's client": Log(
        "verl",
        "".join(f"(Runner pid=9) wandb: {name:>30} {value}   \n" for name, value in EASYR1.items()),
        {"generate": 72.0, "logprobs": 36.5, "train": 119.5},
    ),
}


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


NEMO_RL_LOGS = {
    # `metrics.json`, which `json_dump_tb_logs.py` in NeMo-RL's tests writes (2026): the values of each metric by step.
    "metrics by step": Log(
        "nemo-rl",
        json.dumps(
            {
                "train/loss": {"8": 0.25, "9": 0.5},
                "timing/train/total_step_time": {"8": 100.0, "9": 80.0},
                "timing/train/exposed_generation": {"8": 60.0, "9": 40.0},
                "timing/train/policy_training": {"8": 30.0, "9": 30.0},
                "timing/train/weight_sync": {"8": 10.0, "9": 10.0},
            }
        ),
        {"samples": 100.0, "train": 60.0, "publish": 20.0},
        180.0,
        {"step, loss": [(8, 0.25), (9, 0.5)]},
        "metrics.json",
    ),
    # Pull request 1052 of NVIDIA-NeMo/RL (2025-09-03) quotes one such block, and a page about NeMo-RL on GKE another.
    # The single controller of NeMo-RL prints no headings (7ea279ab, 2026-08-22). Zero is a loss and a reward.
    "blocks without a heading": Log(
        "nemo-rl",
        nemo_rl(20, 10, 9, 0.0) + nemo_rl(30, 18, 10, 0.25) + nemo_rl(40, 20, 18, 0.5),
        {"samples": 48.0, "train": 37.0, "publish": 1.0 + 2.0 + 2.0},
        steps={"step, loss, reward_mean": [(1, 0.0, 0.0), (2, 0.25, 0.0), (3, 0.5, 0.0)]},
        worker="policy",
    ),
    "cut off before the first heading": Log(
        "nemo-rl",
        nemo_rl(20, 10, 9, 0.5) + nemo_rl(20, 10, 9, 0.25, "===== Step 37/100 ====="),
        {"samples": 20.0, "train": 18.0, "publish": 2.0},
        steps={"step, loss": [(36, 0.5), (37, 0.25)]},
        worker="policy",
    ),
    "validates before the first heading": Log(
        "nemo-rl",
        "📊 Validation Results:\n    • Total validation time: 12.00s\n"
        + nemo_rl(20, 10, 9, 0.5, "===== Step 1/2 ====="),
        {"samples": 10.0, "train": 9.0, "publish": 1.0},
        steps={"step": [(1,)]},
        worker="policy",
    ),
    # `ppo.py` of NVIDIA-NeMo/RL at 7ea279ab (2026-08-22): a value model is trained and queried apart from the policy.
    # The step also has 1 s that nothing times.
    "has a value model": two_steps(
        "nemo-rl",
        "timing/train/",
        "exposed_generation 40 samples, value_inference 5 logprobs, value_training_prep 1 other, "
        "value_training 12 train, policy_training 30 train, weight_sync 8 publish, policy_offload_after_refit 3 other, "
        "total_step_time 100",
        100.0,
        **{"(end_ns - start_ns) / 1e9": [(30.0,), (30.0,)]},
    ),
}


def slime_s_metrics() -> str:
    """Pages of llm-d and miles (2026) quote such lines, and tests of other repositories those of Relax, a fork."""
    text, lead = "", "(MegatronTrainRayActor pid=9) [2026-04-02 10:12:12] train_metric_utils.py:50 - "
    for step in (448, 449):
        perf = {"perf/train_wait_time": 75.0, "perf/actor_train_time": 10.0, "perf/step_time": 90.0}
        text += f"rollout {step}: {{'rollout/raw_reward': np.float64(0.25)}}\n"
        text += f"model.py:660 - step {step}: {{'train/loss': 0.125, 'train/grad_norm': 0.5, ...}}\n"
        text += f"{lead}perf {step}: {perf | {'perf/update_weights_fully_async_time': 5.0}}\n"
    return text


# A page about slime's metrics (2026), from a run that sleeps while it trains: 347.5 = 5.5 + 2.5 + 339.5.
SLEEPS = {"sleep": 5.5, "update_weights": 2.5, "train_wait": 347.5, "actor_train": 47.0, "step": 394.5}


def areal_s_tables() -> Log:
    """`rl_trainer.py` of AReaL at 4aef98d8 (2026-05-21), with actor and rollout on the same GPUs, and a critic.

    At cbff54d6 (2026-08-22), it also times the engines that stop and go on.
    """
    times, spent = told(
        "timeperf/",
        "rollout_onload 2 weight_update, rollout 60 generate, rollout_offload 3 weight_update, "
        "teacher_logp 4 logprobs, actor_onload 6 weight_update, train_step 20 train, critic_train_step 10 train, "
        "update_weights 1 publish, actor_offload 5 weight_update, clear_batches 0.5 other, rollout_pause 1.25 "
        "weight_update, rollout_continue_generation 0.5 weight_update, rollout_resume 0.25 weight_update",
    )
    cells = "".join(f"\u2502 {name} \u2502 {seconds:.4e} \u2502\n" for name, seconds in times.items())
    heads = (f"StatsLogger INFO: Epoch 2/2 Step {step}/9 Train step {9 + step}/18 done.\n" for step in (1, 2))
    text = "".join(head + cells for head in heads)
    return Log("areal", text, {state: 2 * each for state, each in spent.items()}, steps={"step": [(10,), (11,)]})


def skyrl_s_mirror() -> str:
    """Marin's fork of SkyRL (2026) mirrors what it sends to W&B. The checkpoint lies outside the step."""
    phases = {"generate": 60.0, "train_critic_and_policy": 35.0, "sync_weights": 5.0, "save_checkpoints": 45.0}
    times = {f"timing/{name}": seconds for name, seconds in ({"step": 100.0} | phases).items()}
    return "".join(
        f"WANDB_MIRROR kind=train step={step} metrics={json.dumps({'trainer/global_step': step} | times)}\n"
        for step in (7, 8)
    )


def torchforge_s_metrics() -> str:
    """Issue 372 (2025-10) and pull request 606 (2025-11) of meta-pytorch/torchforge. 225 = 197 + 8 + 14 + 0 + 6.

    Monarch's prefix stands before one step, and a collector's before the other.
    """
    parts = {"waiting_for_buffer": 197.0, "train_step": 8.0, "push_weights": 14.0, "drop_weights": 6.0}
    text = ""
    for step, prefix in ((3, "[0] "), (4, "2025-11-25T10:11:12.123456789Z stdout F ")):
        lines = [f"=== [global_logger_2aeC_r0] - METRICS STEP {step} ==="]
        lines += ["  buffer/sample/max_sampled_policy_age: 1.0", "  rl_trainer/avg_grpo_loss: 1.25e-06"]
        lines += [f"  main_perf/continuous_training/{name}/duration_avg_s: {each}" for name, each in parts.items()]
        lines += ["  main_perf/continuous_training/total_duration_avg_s: 225.0", "=" * 30]
        text += "".join(f"{prefix}{line}\n" for line in lines)
    return text


XTUNER_SHARED = """(RLColocateTrainer pid=7) [XTuner][2026-08-21 10:11:12][INFO] Train step {step}/20
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
"""
XTUNER = two_steps(
    "xtuner",
    "time/",
    "get_batch 50 samples, prepare_data 1 other, training 30 train, pause_produce 4 barrier, sync_weight 6 publish, "
    "step 91",
    91.0,
)


def xtuner_s_list() -> str:
    """The numbers of `XTUNER` on the console."""
    times: dict[str, float] = json.loads(XTUNER.text.splitlines()[0])
    del times["step"]
    listed = "".join(f" - {name.removeprefix('time/'):<25}: {each:.2f}s\n" for name, each in times.items())
    return "".join(f"Train step {step} finished and timing listed:\n{listed}" for step in (1, 2))


def roll(step: int, times: dict[str, float], file: str = "agentic_pipeline.py") -> str:
    row = {"critic/score/mean": 0.5, "system/step": step, **{f"time/{name}": each for name, each in times.items()}}
    return f"[2026-02-03 10:00:0{step}] [{file} (612)] [INFO] [DRIVER 0 / 1][PID 77] {json.dumps(row)}\n"


ROLL_STEP = {"step_model_update": 1.0, "step_rollout": 40.0, "step_train": 20.0}


def openrlhf(lead: str, step_s: float) -> str:
    prefix = "\x1b[36m(PPOTrainer pid=3)\x1b[0m INFO 01-01 10:00:00 ppo_trainer.py:1] "
    phases = {"make_experience": 2.0, "ppo_train": 5.0, "broadcast": 1.0, "generation": 12.0, "step_total": step_s}
    metrics = {"reward": 0.5, **{f"timing/{name}": each for name, each in phases.items()}}
    return "".join(f"{prefix}{lead} {step}: {metrics}\n" for step in (7, 8, 9))


def trl_behind_its_progress_bar() -> str:
    seconds = {"rollout_wait_s": 3, "fwd_bwd_s": 4, "optimizer_s": 1, "weight_sync_s": 1, "step_s": 9}
    metrics = {"loss": 0.5, **{f"perf/{name}": value for name, value in seconds.items()}}
    return "".join(f"  0%|          | {step}/90 [00:19<15:06:22, 19.23s/it]{metrics}\n" for step in range(3))


def roll_s_late_totals() -> str:
    """Each row has the time of the step before: 33, 23, and 20 + 10 + 2 s."""
    rows = [
        {"step_generate": generated, "step_train": 10.0, "step_model_update": 2.0} for generated in (20.0, 10.0, 20.0)
    ]
    rows[1]["step_total"], rows[2]["step_total"] = 33.0, 23.0
    return "rollout_batch_size: 64\n" + "".join(roll(step, row, "rlvr_pipeline.py") for step, row in enumerate(rows))


def trinity_rft_s_steps() -> str:
    """Trinity-RFT's `monitor.py` (2026): trainer and explorer print the steps that they count.

    verl's times lie inside `train_step`, and those of its critic are no sign of verl's own trainer. The second step
    also updates the explorer and saves: 20 + 30, and 20 + 30 + 5 + 8.
    """
    inner = "'timing_s/values': 6.0, 'timing_s/update_critic': 10.0, 'timing_s/update_actor': 13.0, 'timing_s/step': 29"
    shared = "'time/read_experience': 20.0, 'sample/model_version/mean': np.float64(1.0), 'actor/final_loss': 0.125, "
    after = "'time/sync_weight': 5.0, 'time/save_checkpoint': 8.0"
    steps = (f"Step 1: {{{shared}{inner}, 'time/train_step': 30.0}}",
             f"Step 2: {{{shared}{inner}, 'time/train_step': 30.0, {after}}}",
             "Step 2: {'rollout/model_version': 1, 'time/wait_explore_step': 44.0, 'time/eval': 99.0}")  # fmt: skip
    return "".join(f"(Trainer pid=8) INFO 08-21 10:11:12 [monitor.py:177] {each}\n" for each in steps)


def pipelinerl(*lines: tuple[float, int], samples: float, train: float, refusal: str | None = None) -> Log:
    """`finetune_loop.py` and `logging_.py` of ServiceNow/PipelineRL at 58d39345 (2026-06-19).

    A line has a step of 10 s, and the wait since the start of the run. It rounds metrics to texts.
    """
    text = ""
    for waited_s, step in lines:
        values = {
            "stats/time_waiting_for_data": f"{waited_s:.3f}",
            "throughput/sec_per_step": "10.000",
            "rl/loss": "nan",
        }
        text += "[2025-06-13 09:51:18,123][pipelinerl.finetune.logging_][INFO] - "
        text += f"Completed steps {step}: {values}\n"
    return Log("pipelinerl", text, {"samples": samples, "train": train}, refusal=refusal)


PIPELINERL_LOGS = {
    # Waits of 4, 6 and 5 s in each three steps; the trainer does something else in 6, 4 and 5 s.
    "PipelineRL's wait adds up": pipelinerl(
        (4.0, 1), (10.0, 2), (15.0, 3), (19.0, 4), (25.0, 5), (30.0, 6), samples=30.0, train=30.0
    ),
    "PipelineRL cut off: what the first line counts began before it": pipelinerl(
        (904.0, 101), (910.0, 102), (915.0, 103), samples=11.0, train=9.0
    ),
    # A row has the time of its own step, and the waits of two.
    "PipelineRL logs each second step": pipelinerl(
        (4.0, 1), (12.0, 3), (26.0, 5), samples=4.0 + 4.0 + 7.0, train=6.0 + 6.0 + 3.0, refusal="contains 3 of 5 steps"
    ),
    "PipelineRL resumed, and counts anew": pipelinerl(
        (4.0, 1), (10.0, 2), (5.0, 3), (9.0, 4), samples=4.0 + 6.0 + 5.0 + 4.0, train=6.0 + 4.0 + 5.0 + 6.0
    ),
}
UNSETTLED = "pass --gpus colocated=N or --gpus trainer=N,sampler=N"


def roll_with(config: str, takes: str, refusal: str | None = None) -> Log:
    """`base_config.py` and the start scripts of alibaba/ROLL at 8eb27cc2 (2026-08-19), which prints it as YAML."""
    times = {"step_generate": 30.0, "step_train": 10.0, "step_model_update": 2.0}
    text = config + "".join(roll(step, times, "rlvr_pipeline.py") for step in (1, 2))
    return Log("roll", text, {takes: 60.0, "train": 20.0, "publish": 4.0}, refusal=refusal)


def open_instruct(wait: str, training_s: float, saving_s: float = 0.0) -> Log:
    """Steps of allenai/open-instruct that wait for 20 s, train for 26 s, send weights for 4 s, and may save."""
    spent = {"samples": 20.0, "train": 26.0, "publish": 4.0} | ({"checkpoint": saving_s} if saving_s else {})
    times = {wait: 20.0, "training": training_s, "weight_sync": 4.0, "total": sum(spent.values())}
    if saving_s:
        times["saving"] = saving_s
    if wait == "trainer_idling":
        # The main thread waits until the weights are sent.
        times[wait] += 4.0
    return Log("open-instruct", rows("time/", times), {name: 2 * each for name, each in spent.items()}, name="a.jsonl")


TINKER_ROW: dict[str, Any] = {"env/all/reward/total": 0.25, "env/all/total_episodes": 768, "optim/entropy": 0.5}
TINKER_STEP = {"assemble_training_data": 1.0, "compute_kl_sample_train": 0.5, "save_checkpoint": 16.0}


def tinker(times: dict[str, float], evaluation: str) -> Log:
    """200 - 87 - 1 - 30 - 0.5 - 16 = 65.5 s of sampling in a step that evaluates; 113 s is one that does not."""
    evaluates = TINKER_STEP | times | {evaluation: 87.0, "total": 200.0}
    plain = TINKER_STEP | times | {"total": 113.0}
    text = rows("time/", evaluates, first=0, count=1, **TINKER_ROW) + rows("time/", plain, **TINKER_ROW)
    spent = {"eval": 87.0, "samples": 3 * 65.5, "other": 3 * 1.5, "train": 3 * 30.0, "publish": 3 * 16.0}
    columns = {"reward_mean, samples, entropy": [(0.25, 768, 0.5)] * 3}
    return Log("tinker-cookbook", text, spent, 426.0, columns, "metrics.jsonl")


def art(wait: str, train: str, rest: dict[str, float]) -> Log:
    """`history.jsonl` of OpenPipe/ART's `PipelineTrainer` (2026): times of three steps, written every 95 s."""
    text = ""
    for step, at in enumerate(("10:11:35", "10:13:10", "10:14:45"), 1):
        phases = {"time/step_wall_s": 95.0, "time/cum/wall_s": 95.0 * step, wait: 20.0, train: 70.0, **rest}
        recorded = {"recorded_at": f"2026-08-21T{at}.000000", "training_step": step}
        text += json.dumps({"step": step, "train/reward": 0.25, "loss/train": -0.5, **phases, **recorded}) + "\n"
        text += json.dumps({"step": step, "val/reward": 0.5, "time/step_eval_s": 30.0, "training_step": step}) + "\n"
    # The first row is of 2026-08-21T10:11:35 in UTC; 5 s of its step follow the training.
    ends = [(1_787_307_095.0 - 5.0 + 95.0 * step, 0.25, -0.5) for step in range(3)]
    spent = {"samples": 60.0, "train": 210.0} | ({"other": 12.0} if rest else {})
    return Log("art", text, spent, 285.0, {"end_ns / 1e9, reward_mean, loss": ends}, "history.jsonl")


def unirl(step_s: str, length: dict[str, float], refusal: str | None = None) -> Log:
    """Tencent-Hunyuan/UniRL's `wandb_logger.py` at 1a7b501e and 0bd34ab4 (2026): a row for rewards, one for each update
    of the optimizer, and one for times. 3 + 5 + 60 + 2 + 4 + 40 = 114 of 115 s. Only rows of language models have
    lengths; those of diffusion models may be of separate GPUs.
    """
    phases = {"wake_up": 3.0, "weight_sync": 5.0, "generate": 60.0, "sleep": 2.0, "reward": 4.0, "train": 40.0}
    perf = {f"perf/{name}_time_s": each for name, each in phases.items()}
    groups = (
        {"_timestamp": 1.78e9 + 115.0 * step, **row}
        for step in (1, 2)
        for row in (
            {"rollout/step": step, "rollout/reward_mean": 0.25 * step, **length},
            {"train/step": 2 * step - 1, "train/loss": 9.0},
            {"train/step": 2 * step, "train/loss": 9.0},
            {"rollout/step": step, step_s: 115.0, **perf},
        )
    )
    text = "".join(json.dumps({"_step": at, **row}) + "\n" for at, row in enumerate(groups))
    spent = {"weight_update": 10.0, "publish": 10.0, "generate": 120.0, "reward": 8.0, "train": 80.0}
    steps = {"step, reward_mean, loss": [(1, 0.25, None), (2, 0.5, None)]}
    return Log("unirl", text, spent, 230.0, steps, "a.jsonl", refusal=refusal)


def rlinf(*evals: float) -> str:
    """Pull request 942 of RLinf/RLinf (2026-04) and its `print_metrics_table` at a3816b59 (2026-08-22): 120 columns.

    100 = 1 + 80 + 0.5 + 18.5, and what evaluates. The times of workers lie inside.
    """
    text = ""
    for step, evaluation_s in enumerate(evals, 6):
        times = {"cal_adv_and_returns": 0.5, "env/interact": 79.0, "generate_rollouts": 80.0, "sync_weights": 1.0}
        times |= {"actor/run_training": 18.5, "step": 100.0 + evaluation_s}
        times |= {"eval": evaluation_s} if evaluation_s else {}
        cells = [f"{name}={each:.3f}".ljust(38) for name, each in sorted(times.items())]
        cells += [" " * 38] * (-len(cells) % 3)
        table = [f"│{'│'.join(cells[at : at + 3])}│" for at in range(0, len(cells), 3)]
        head = f"│ Global Step: {step:4d}/1000 │ Elapsed: 01:10:02 │ Step Time: 98.125s".ljust(117) + "│"
        text += "\n".join((f"├{' Metric Table ':─^116}┤", head, f"├{' Time ':─^116}┤", *table, "")) + "\n"
    return text


OTHER_LOGS = {
    "slime's metrics without its timers": Log(
        "slime",
        slime_s_metrics(),
        {"samples": 150.0, "train": 20.0, "publish": 10.0},
        180.0,
        {"step, loss, grad_norm, reward_mean": [(448, 0.125, 0.5, 0.25), (449, 0.125, 0.5, 0.25)]},
    ),
    # Pull request 1102 of THUDM/slime (2026-01) quotes them behind a timer that starts, and a report (2026) before one
    # that ends: parts of a log, whose timers tell less.
    "slime's metrics between timers": Log(
        "slime",
        "[2026-01-05 12:20:29] timer.py:24 - Timer train_wait start\n"
        + slime_s_metrics()
        + "[2026-01-05 12:21:45] timer.py:32 - Timer save_model end (elapsed: 31.1s)\n",
        {"samples": 150.0, "train": 20.0, "publish": 10.0},
        180.0,
    ),
    # `actor.py` of THUDM/slime at 624b824a and radixark/miles at 31f1ca96 (2026-08-21): on-policy distillation.
    "slime's teacher": two_steps(
        "slime",
        "perf/",
        "train_wait_time 75 samples, teacher_log_probs_time 5 logprobs, actor_train_time 10 train, step_time 90",
        90.0,
    ),
    "slime's metrics over several lines": Log(
        "slime",
        "{\n" + "".join(f"    'perf/{name}_time': {each},\n" for name, each in SLEEPS.items()) + "}\n",
        {"weight_update": 5.5, "publish": 2.5, "generate": 339.5, "train": 47.0},
    ),
    # Rows that tests of other repositories quote from AReaL's logs of July 2026.
    "AReaL's table without the line above": Log(
        "areal",
        "│ timeperf/rollout │ 9.0e+01 │ ppo_actor/update/lr │ 5e-06 │\n│ timeperf/train_step   │  3.15e+01 │ other │\n",
        {"samples": 90.0, "train": 31.5},
    ),
    "AReaL's engines that make room for the trainer": areal_s_tables(),
    "SkyRL's metrics behind an unknown text": Log(
        "skyrl",
        skyrl_s_mirror(),
        {"generate": 120.0, "train": 70.0, "publish": 10.0, "checkpoint": 90.0},
        2 * (100.0 + 45.0),
        {"step": [(7,), (8,)]},
    ),
    # Pages of 2026 quote three of SkyRL's times of a step, one a line.
    "SkyRL without its weight update": Log(
        "skyrl",
        "timing/step: 100.0\ntiming/generate: 65.0\ntiming/train_critic_and_policy: 30.0\n",
        {"generate": 65.0, "train": 30.0},
        100.0,
    ),
    # Notes of 2026 about runs on two clusters name the training of the policy alone, with units, in Markdown.
    "SkyRL in a list of Markdown": Log(
        "skyrl",
        "- `timing/step`: `290.5s`\n- `timing/generate`: `120s`\n- `timing/sync_weights`: `95s`\n"
        "- `timing/policy_train`: `55.5s`\n",
        {"generate": 120.0, "publish": 95.0, "train": 55.5},
        290.5,
    ),
    "verl in a table of Markdown": Log(
        "verl",
        "| metric | value |\n|---|---|\n| **timing_s/gen** | 90.5 |\n| `timing_s/update_actor` | `80.5` |\n"
        "| timing_s/step | **175.0** |\n",
        {"generate": 90.5, "train": 80.5},
        175.0,
    ),
    # `trainer.py` of NovaSky-AI/SkyRL at a9564572 (2026-08-21): 100 s of both, of which 35 s are the critic's.
    "SkyRL's critic": two_steps(
        "skyrl",
        "timing/",
        "generate 60 generate, apply_reward_kl_penalty 1 other, train_critic_and_policy 100, critic_train 35 train, "
        "policy_train 65 train, sync_weights 4 publish, step 165",
        165.0,
        **{"(end_ns - start_ns) / 1e9": [(65.0,), (65.0,)]},
    ),
    "torchforge": Log(
        "torchforge",
        torchforge_s_metrics(),
        {"samples": 394.0, "train": 16.0, "weight_update": 28.0, "other": 12.0},
        steps={"step, loss": [(3, 1.25e-06), (4, 1.25e-06)]},
    ),
    # `train.py` of prime-rl at 4620e257 (2025-10-09): the weights are saved for the engines before the step.
    "prime-rl's earlier trainer": two_steps(
        "prime-rl",
        "time/",
        "save_weights 6 publish, wait_for_batch 40 samples, load_data 1 other, compute_logprobs 9 logprobs, "
        "forward_backward 30 train, step 80",
        86.0,
    ),
    # `rl_trainer.py` of InternLM/xtuner at 52996934 (2026-08-21). 80 + 3 + 1 + 30 + 2 + 6 = 122, and 1 s is not timed.
    # What suspends NCCL lies inside the weight update.
    "XTuner with shared GPUs": Log(
        "xtuner",
        XTUNER_SHARED.format(step=1, evaluation="", total=123)
        + XTUNER_SHARED.format(step=2, evaluation=" - evaluation               : 40.00s\n", total=163),
        {"generate": 160.0, "weight_update": 6.0, "other": 2.0, "train": 60.0, "checkpoint": 4.0, "apply": 12.0,
         "eval": 40.0},
        123.0 + 163.0,
        {"step, reward_mean": [(1, 0.25), (2, 0.25)]},
    ),
    # Its list on the console, and the same numbers in `tracker.jsonl`.
    "XTuner's console": Log("xtuner", xtuner_s_list(), XTUNER.spent),
    "XTuner's tracker": XTUNER,
    # `agentic_pipeline.py` of alibaba/ROLL at 8eb27cc2 (2026-08-19): a thread evaluates beside the rollout, and the
    # rest is waited for. Step 4 takes 1 + 40 + (55 - 40) + 20 + 5 s. The console prints no total, unknown at that time.
    "ROLL's agentic runs": Log(
        "roll",
        "rollout_batch_size: 64\n"
        + roll(3, ROLL_STEP | {"step_val": 30.0})
        + roll(4, ROLL_STEP | {"step_val": 55.0, "actor_train/do_checkpoint/total": 5.0}),
        {"publish": 2.0, "generate": 80.0, "eval": 15.0, "train": 40.0, "checkpoint": 5.0},
        61.0 + 81.0,
        {"step": [(3,), (4,)]},
    ),
    "ROLL's totals": Log(
        "roll", roll_s_late_totals(), {"generate": 50.0, "train": 30.0, "publish": 6.0}, 33.0 + 23.0 + 32.0
    ),
    # From its source. Synchronous: the step is the sum of its phases.
    "OpenRLHF in turn": Log(
        "openrlhf",
        openrlhf("✨ Global step", 20),
        {"generate": 36.0, "logprobs": 6.0, "train": 15.0, "publish": 3.0},
        steps={"step": [(7,), (8,), (9,)]},
    ),
    # Asynchronous: it is the time that passed, and generation overlaps with it.
    "OpenRLHF at once": Log(
        "openrlhf",
        openrlhf("Global step", 13),
        {"samples": 15.0, "logprobs": 6.0, "train": 15.0, "publish": 3.0},
        steps={"step": [(7,), (8,), (9,)]},
    ),
    "TRL": Log("trl", trl_behind_its_progress_bar(), {"samples": 9.0, "train": 15.0, "publish": 3.0}),
    "Trinity-RFT": Log(
        "trinity-rft",
        trinity_rft_s_steps(),
        {"samples": 40.0, "logprobs": 12.0, "train": 48.0, "publish": 5.0, "checkpoint": 8.0},
        50.0 + 63.0,
        {"step, loss": [(1, 0.125), (2, 0.125)]},
    ),
    # A synchronous run leaves the default of the ratio out. A log without its head looks the same in both.
    "ROLL with a ratio": roll_with("rollout_batch_size: 64\nasync_generation_ratio: 0.5\n", "samples"),
    "ROLL with a ratio of 0": roll_with("rollout_batch_size: 64\nasync_generation_ratio: 0\n", "generate"),
    "ROLL without a ratio": roll_with("rollout_batch_size: 64\n", "generate"),
    "ROLL without its config": roll_with("", "generate", UNSETTLED),
    # grpo_fast.py at e6c3044a (2026-08-20): a batch is taken and weights are sent inside the training of 50 s.
    "open-instruct waits in its training": open_instruct("trainer_waiting_for_data", 50.0, 6.0),
    "open-instruct before May 2026": open_instruct("trainer_idle_waiting_for_inference", 50.0, 6.0),
    # grpo.py at e6c3044a: the training begins with the batch, and the weights are sent after it.
    "open-instruct waits before its training": open_instruct("trainer_waiting_for_data", 26.0),
    # grpo_fast.py at the end of October 2025: the main thread waits 24 s, and weights are sent during the first 4.
    "open-instruct in October 2025": open_instruct("trainer_idling", 26.0, 6.0),
    # Two runs that HarleyCoops/Qwen3-RailroadEngineer1959-RL kept (e67fb98f, November 2025): sampling is the rest.
    "the Tinker cookbook without a time of sampling": tinker({"train": 30.0}, "run_evals"),
    # tinker-cookbook at 9dfcc3a2 (2026-08-19): the second of the times of training contains the first.
    "the Tinker cookbook": tinker(
        {"train_step": 30.0, "do_train_step_and_get_sampling_client": 47.5, "sampling": 65.5,
         "do_group_rollout_and_filter_constant_reward:total": 3000.0},
        "run_evaluations_parallel",
    ),
    # `train_on_policy.py` of tinker-cookbook at 9dfcc3a2 (2026-08-19), and a run of late 2025: the student samples, and
    # the teacher is asked. 1 s of 84 is not timed.
    "the Tinker cookbook's distillation": two_steps(
        "tinker-cookbook",
        "time/",
        "run_evals 10 eval, sample 40 samples, assemble_training_data 1 other, compute_kl_penalty 20 logprobs, "
        "train 8 train, compute_kl_sample_train 1 other, save_checkpoint 3 publish, total 84",
        84.0,
    ),
    # The distributed queue of August 2026: 20 + 70 + 4 of 95 s.
    "ART's distributed queue": art(
        "time/step_collect_batch_s", "time/step_backend_train_s", {"time/step_post_train_backpressure_s": 4.0}
    ),
    "ART": art("time/step_trainer_idle_s", "time/step_backend_train_s", {}),
    "ART before June 2026": art("throughput/step_trainer_idle_s", "time/step_trainer_s", {}),
    "RLinf": Log(
        "rlinf",
        rlinf(0.0, 0.0, 40.0),
        {"publish": 3.0, "generate": 240.0, "other": 1.5, "train": 55.5, "eval": 40.0},
        340.0,
        {"step": [(6,), (7,), (8,)]},
        refusal=UNSETTLED,
    ),
    # `async_ppo_embodied_runner.py` of RLinf/RLinf at a3816b59 (2026-08-22).
    "RLinf's asynchronous runs": two_steps(
        "rlinf",
        "time/",
        "construct_rollout_batch 40 samples, cal_adv_and_returns 1 other, actor_training 25 train, "
        "actor/run_training 24.5, update_rollout_weights 4 publish, step 70",
        70.0,
    ),
    "UniRL with a language model": unirl("perf/step_time_s", {"rollout/response_len_mean": 700.0}),
    "UniRL with a diffusion model": unirl("perf/rollout_time_s", {}, UNSETTLED),
}  # fmt: skip
LOGS = VERL_LOGS | NEMO_RL_LOGS | OTHER_LOGS | PIPELINERL_LOGS


@pytest.mark.parametrize("log", LOGS.values(), ids=list(LOGS))
def test_a_published_log_is_read_as_the_phases_of_its_trainer(tmp_path: Path, log: Log) -> None:
    read = imported(tmp_path, log.text, log.name)
    assert read.framework == log.framework
    assert read.refusal is None if log.refusal is None else log.refusal in str(read.refusal)
    assert worker_s(tmp_path / "run", log.worker) == log.spent
    length_s = f"SELECT (stopped_ns - started_ns) / 1e9 FROM workers WHERE worker_id = '{log.worker}'"
    assert asked(tmp_path / "run", length_s) == [(pytest.approx(log.length_s or sum(log.spent.values())),)]
    for columns, expected in log.steps.items():
        assert asked(tmp_path / "run", f"SELECT {columns} FROM train_steps ORDER BY step") == expected


CONFIG = """(TaskRunner pid=7) {'actor_rollout_ref': {'rollout': {'n': 4, 'nnodes': 1,
(TaskRunner pid=7)                                    'n_gpus_per_node': 6}},
(TaskRunner pid=7)  'trainer': {'n_gpus_per_node': 8, 'nnodes': 1}}
"""
CONFIGURED = CONFIG + "".join(verl(step, VERL_PHASES) for step in (1, 2, 3))


@pytest.mark.parametrize(
    "prefix",
    [
        "2026-03-04T05:06:07.123456789Z ",
        "2026-03-04T05:06:07.123456789Z stdout F ",
        "[pod/trainer-0/main] ",
        "trainer-1  | ",
        "train.log:12:",
        "0: ",
        "[default0]:",
        "[1,0]<stdout>:",
        "12:",
        "Nov 29 13:45:07 ",
        "2026-03-04 05:06:07 ",
        "2026-03-04 05:06:07.123\t",
        "[2026-03-04 05:06:07] ",
        "[2026-03-04 05:06:07.123] ",
        "Nov 29 13:45:07 node-3 python[4711]: ",
        "    12\t",
        "> ",
        "    ",
        "\x1b[36m(main_task pid=77, ip=10.0.0.2)\x1b[0m ",
        # As a browser and `cat -v` show the escape character.
        "[36m(main_task pid=77)[0m ",
        "^[[36m(main_task pid=77)^[[0m ",
        # As CloudWatch shows it.
        "#033[36m(main_task pid=77)#033[0m ",
        # pdsh, stern with and without times, Vertex AI, and the serial port of a machine at Google.
        "node-3: ",
        "gpu07.cluster: ",
        "localhost: ",
        "10.0.3.4: ",
        "verl-head-x7k2p ray-head ",
        "\x1b[35mverl-head-x7k2p\x1b[0m \x1b[95mray-head\x1b[0m 2026-03-04T05:06:07.123456789Z ",
        "INFO\t2026-03-04 05:06:07 +0000\tworkerpool0-0\t",
        "Nov 29 13:45:07 gpu-vm google_metadata_script_runner[4711]: startup-script: ",
    ],
)
def test_what_a_log_collector_puts_before_each_line_does_not_hide_the_config(tmp_path: Path, prefix: str) -> None:
    """The config says that samplers have GPUs of their own. Without it, the steps would be those of shared GPUs."""
    has_config(tmp_path, "".join(f"{prefix}{line}\n" for line in CONFIGURED.splitlines()))


@pytest.mark.parametrize("name", ["a.log", "a.jsonl"])
def test_lines_that_a_log_service_sent_are_those_of_a_console(tmp_path: Path, name: str) -> None:
    sent = ({"date": 1.5, "message": line, "pod": "trainer-0"} for line in CONFIGURED.splitlines())
    has_config(tmp_path, "".join(json.dumps(each) + "\n" for each in sent), name)


@pytest.mark.parametrize("name", ["a.json", "a.csv"])
def test_a_log_inside_another_file_is_refused_with_the_form_to_save(tmp_path: Path, name: str) -> None:
    text = json.dumps([*CONFIGURED.splitlines()], indent=1) if name == "a.json" else f"Date,Content\n{CONFIGURED}"
    with pytest.raises(ImportFileError, match=r"a log inside a table or a JSON document; .* Save them as text"):
        imported(tmp_path, text, name)


@pytest.mark.parametrize(
    "text",
    [
        "\ufeff" + CONFIGURED,
        # A file of docker's, and links that a terminal would show.
        "".join(json.dumps({"log": line, "stream": "stdout"}) + "\n" for line in CONFIGURED.splitlines(keepends=True)),
        CONFIGURED.replace("(TaskRunner pid=7) ", "\x1b]8;;file:///a.py\x1b\\(TaskRunner pid=7) \x1b]8;;\x07"),
    ],
)
def test_what_wraps_a_log_or_its_lines_does_not_hide_the_config(tmp_path: Path, text: str) -> None:
    has_config(tmp_path, text)


def has_config(tmp_path: Path, text: str, name: str = "a.log") -> None:
    imported(tmp_path, text, name)
    assert asked(tmp_path / "run", "SELECT role, gpu_count FROM workers ORDER BY role") == [
        ("sampler", 6),
        ("trainer", 8),
    ]
    assert worker_s(tmp_path / "run") == {"samples": 123.75, "logprobs": 7.5, "train": 36.0}


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
        ("timing_s/step", "timing_s/st\nep"),
        # A log of verl (2026-07) at 120 columns, in which the rest looks like the beginning of a step.
        ("timing_s/step", "timing_s/\nstep"),
        ("timing_s/ref", "\ntiming_s/ref"),
        ("55.75", "55\n.75"),
        ("55.75", "55.\n75"),
        # Other writers print numbers so.
        ("41.25", "4.125E+01"),
        ("41.25", "tensor(41.25)"),
    ],
)
def test_a_line_that_was_wrapped_is_read_as_one(tmp_path: Path, cut: str, joined: str) -> None:
    text = "".join(verl(step, VERL_PHASES) for step in (44, 45)).replace(cut, joined)
    assert imported(tmp_path, text).framework == "verl"
    assert spent_s(tmp_path / "run") == {"trainer generate": 82.5, "trainer logprobs": 5.0, "trainer train": 24.0}
    assert asked(tmp_path / "run", "SELECT step FROM train_steps ORDER BY step") == [(44,), (45,)]


def test_a_step_that_was_wrapped_after_a_dash_is_whole_beside_others(tmp_path: Path) -> None:
    """The rest keeps the space before its first metric."""
    text = verl(44, VERL_PHASES) + verl(45, VERL_PHASES).replace("- timing_s/ref", "-\n timing_s/ref")
    assert imported(tmp_path, text).framework == "verl"
    assert spent_s(tmp_path / "run") == {"trainer generate": 82.5, "trainer logprobs": 5.0, "trainer train": 24.0}


@pytest.mark.parametrize("name", ["blocks without a heading", "RLinf", "XTuner's console"])
def test_steps_are_found_behind_what_many_workers_print_when_they_start(tmp_path: Path, name: str) -> None:
    """Logs of SGLang on many ranks (2026-01) print 370 kB before their first batch, and jobs of many nodes more."""
    line = "(VllmGenerationWorker pid=7) Loading safetensors checkpoint shards\n"
    text = line * (HEAD_BYTES // len(line) + 1) + LOGS[name].text
    assert imported(tmp_path, text).framework == LOGS[name].framework
    assert worker_s(tmp_path / "run", LOGS[name].worker) == LOGS[name].spent


def test_the_last_config_counts_where_a_file_has_two_runs_as_their_last_steps_do(tmp_path: Path) -> None:
    later = CONFIGURED.replace("'nnodes': 1}}", "'nnodes': 2}}").replace("12.0", "22.0").replace("55.75", "65.75")
    other = "(TaskRunner pid=7) {'other': 1,\n(TaskRunner pid=7)  'b': {'c': 1}}\n"
    told = "The run was started again with other settings: trainer_gpus 8, then 16. The last ones stand for all steps"
    assert told in imported(tmp_path, CONFIGURED + other + later).notes
    assert asked(tmp_path / "run", "SELECT gpu_count FROM workers ORDER BY worker_id") == [(6,), (16,)]
    assert worker_s(tmp_path / "run") == {"samples": 123.75, "logprobs": 7.5, "train": 66.0}


@pytest.mark.parametrize(("end", "steps"), [(" - timing_s/update", [45]), ("ng_s/gen", [45]), ("", [44, 45])])
def test_a_step_that_was_cut_before_its_training_and_its_time_is_left_out(
    tmp_path: Path, end: str, steps: list[int]
) -> None:
    first, last = (verl(step, VERL_PHASES) for step in (44, 45))
    imported(tmp_path, (first.partition(end)[0] if end else first) + "\n" + last)
    assert asked(tmp_path / "run", "SELECT step FROM train_steps ORDER BY step") == [(step,) for step in steps]
    generated = "SELECT sum(end_ns - start_ns) / 1e9 FROM activities WHERE activity = 'generate'"
    assert asked(tmp_path / "run", generated) == [(41.25 * len(steps),)]


def test_a_dictionary_that_is_cut_off_costs_no_other_step(tmp_path: Path) -> None:
    first, cut, last = openrlhf("Global step", 13).splitlines()
    imported(tmp_path, "\n".join((first, cut[:140], "Restarted with {options", last)))
    assert asked(tmp_path / "run", "SELECT step FROM train_steps ORDER BY step") == [(7,), (9,)]


GRPO_REFUSED = r"of TRL that does not show .*Pass a run folder that `trl_grpo\.instrument\(trainer\)` or `trl_async\."


def test_a_crash_lists_the_settings_of_the_command(tmp_path: Path) -> None:
    """Hydra does so at the end of a log: a Slurm log of verl (2026-01-08) and a page about TinyZero (2025-08-10)."""
    crash = "Error executing job with overrides: ['data.train_batch_size=16', '+trainer.n_gpus_per_node=4', 'a.b=c']\n"
    text = verl(4, VERL_PHASES)
    imported(tmp_path, text + crash.replace("]", ", 'trainer.nnodes=2', 'actor_rollout_ref.rollout.n=2']"))
    assert asked(tmp_path / "run", "SELECT gpu_count FROM workers") == [(8,)]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        # Pull request 1630 of prime-rl (2026-01).
        (
            "16:43:08 SUCCESS Step 5 | Time: 5.23s | Reward: 0.3 | Async Level: 1\n",
            r"a console log of prime-rl .*Pass the output folder, whose metrics\.jsonl .*the trainer's \.wandb",
        ),
        # Logs of verl (2025) whose logger is W&B alone, and of runs that crashed in their first step.
        (
            "(TaskRunner pid=7) Training Progress:   0%|          | 33/15625 [36:51<289:24:03, 66.82s/it]\n",
            r"a console log of verl .*Pass its \.wandb file or TensorBoard events, .* trainer\.logger has console",
        ),
        (
            "(main_task pid=7) {'actor_rollout_ref': {'actor': {'clip_ratio': 0.2}},\n"
            "(main_task pid=7)  'trainer': {'total_training_steps': 2}}\nNotImplementedError\n",
            r"a console log of verl .*Pass its \.wandb file .* from the end of a step on",
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
        # Issue 1487 of slime (2026-03), about a job that hangs.
        (
            "> (MegatronTrainRayActor pid=9) [2026-03-24 06:36:50] timer.py:24 - Timer actor_train start\n",
            r"timers that start, and none that ends; .*Pass the log of the whole job",
        ),
        # RL2 at 9161ede (2026-05).
        (
            "Step 1, response_length/train: 512, rewards/train: 0.3, dynamic_filtering_ratio/train: 0.2\n",
            r"a console log of RL2 .*Pass its \.wandb file",
        ),
        # As it is copied from a terminal, with spaces where the progress bar was.
        (
            " " * 40 + "{'loss': 0.1, 'completions/mean_length': 142.7, 'reward': 1.8, 'epoch': 0.1}\n",
            rf"a console log {GRPO_REFUSED}",
        ),
        # The table of a notebook, of Unsloth's (2025) among others.
        (
            "[250/250 1:37:44, Epoch 0/1]\nStep\tTraining Loss\treward\treward_std\tkl\n1\t0.0\t0.125\t0.0\t0.0\n",
            rf"a console log {GRPO_REFUSED}",
        ),
        # open-instruct at e6c3044a (2026-08-20).
        ("╭──── Metrics ────╮\n│  time  total: 120.5 | training: 60.1 │\n", r"open-instruct .*the \.wandb file"),
        # Logs of engines without their statistics; those of a trainer with such lines lack its metrics first of all.
        (
            "(APIServer pid=7) INFO 06-05 14:49:50 [api_server.py:1971] Starting vLLM API server 0 on http://h:8000\n",
            "console log of vLLM that has none of its statistics; expected lines with `Avg prompt throughput`",
        ),
        (
            "[2025-12-26 23:02:00 TP0] max_total_num_tokens=500000, max_running_requests=512, context_len=4096\n",
            "console log of SGLang .*Pass the log of an engine that prints them .*the trainer's log",
        ),
        (
            "INFO 06-05 14:49:50 [core.py:76] Initializing a V1 LLM engine (v0.11.0) with config: model='m'\n"
            "{'loss': 0.1, 'completions/mean_length': 142.7, 'reward': 1.8, 'epoch': 0.1}\n",
            "console log of TRL",
        ),
        # A dictionary that was cut short, on a page about OpenRLHF (2026).
        (
            "(PPOTrainer) Global step 1: {'reward': 0.5, 'policy_loss': 0.0, 'timing/ppo_train': 5.04, ...}\n",
            "look like OpenRLHF, 3 of 3 keys, but not all step times; expected also `timing/step_total`",
        ),
        (
            "timing_s/gen: 72.0\ntiming_s/update_actor: 119.5\ntiming_s/step: 228.0\n"
            "timing/generate: 60.0\ntiming/sync_weights: 5.0\ntiming/step: 100.0\n",
            r"SkyRL and step metrics of verl; .*Pass --as skyrl or --as verl",
        ),
        (
            '{"train/loss": 0.1, "train/completions/mean_length": 142.7, "train/reward": 1.8, "train/epoch": 0.1}',
            rf"a metrics file {GRPO_REFUSED}",
        ),
        # Issue 3452 of TRL, whose releases of early 2025 have other names.
        (
            "{'loss': 0.0, 'completion_length': 232.825, 'reward': 1.75, 'reward_std': 0.5, 'epoch': 0.31}\n",
            rf"a console log {GRPO_REFUSED}",
        ),
        # An own loop, which names the deviation of its rewards as TRL does; pandas adds a column without a name.
        (
            json.dumps({"": 0, "step": 1, "reward_std": 0.25, "gen_s": 5.0, "train_s": 4.0}),
            "3 metrics of no framework that rlscope knows: .*as in --phases generate=gen_s,train=train_s",
        ),
        # The asynchronous runs of the Tinker cookbook do not time the wait.
        (
            rows("time/", TINKER_STEP | {"train_step": 30.0, "sampling_time_mean": 90.0, "total": 48.0}, **TINKER_ROW),
            r"look like Tinker cookbook, 9 of 9 keys, .*also `time/sampling`",
        ),
        # A fork of verl of 2026 has another name for generation.
        (
            verl(1, "timing_s/rollout_with_filtering:300.5 - timing_s/update_actor:500.5 - timing_s/step:801.5"),
            "verl, 4 of 4 keys, .* also `timing_s/gen`.*as in --phases step=timing_s/step,"
            "generate=timing_s/rollout_with_filtering,train=timing_s/update_actor",
        ),
        # A script of 2026 that prints some of the times of verl's run one step behind: what the table says of a metric
        # counts more than its name, which has "rollout" here.
        (
            verl(1, "timing_s/sync_rollout_weights:30.5 - timing_s/update_actor:40.5 - timing_s/step:80.5"),
            "as in --phases step=timing_s/step,generate=METRIC,train=timing_s/update_actor,"
            "update=timing_s/sync_rollout_weights",
        ),
        # A console of slime (2026) whose update has a part before it in the alphabet.
        (
            "perf 0: {'perf/update_weights_pause_time': 1, 'perf/update_weights_time': 2, 'perf/step_time': 30}\n",
            "as in --phases step=perf/step_time,generate=METRIC,train=METRIC,update=perf/update_weights_time",
        ),
        # Two runs side by side in notes about NeMo-RL (2026); the name of the step looks like a total of training.
        (
            "| `timing/train/total_step_time` (s) | 392 | 573 |\n| `timing/train/policy_training` (s) | 9.5 | 14.5 |\n"
            "| `timing/train/exposed_generation` (s) | 368.5 | 542.5 |\n",
            "as in --phases step=timing/train/total_step_time,generate=METRIC,train=timing/train/policy_training",
        ),
        # Numbers that are no seconds.
        (
            "timing_s/gen: fast\ntiming_s/update_actor: slow\ntiming_s/step: about 2 min\n",
            "verl, 3 of 3 keys, .*; expected a number behind the name of each",
        ),
        # A comma is read neither as a decimal point nor as the end of a number.
        (
            verl(
                1,
                "actor/pg_loss:0.5 - timing_s/ref:2.5 - actor/entropy:0 - timing_s/gen:41,2 - timing_s/step:1,255.7",
            ),
            "look like verl, 3 of 3 keys, but not all step times; expected also `timing_s/gen` and `timing_s/step`",
        ),
        # oat's learner, as sail-sg/oat names its times (2026).
        (
            3 * '{"_step": 1, "misc/elapse": 900.0, "train/learn_batch_time": 30.0, "actor/generate_time": 40.0}\n',
            "3 metrics of no framework that rlscope knows: actor/generate_time, train/learn_batch_time, misc/elapse.*"
            "--phases",
        ),
        # Pull request 2398 of torchtitan (2026), whose durations are aligned.
        (
            3 * "  rollout:   6.35s,  14.00 GiB\n  train:    26.85s\n  weight_sync:  8.13s\n  total:    41.44s\n",
            "rollout, total, train, weight_sync;.*step=total,generate=rollout,train=train,update=weight_sync",
        ),
        # Names without numbers: a console is one, however its lines are searched.
        (
            "Training Progress:   0%|          | 1/9\nplots: perf/rollout_wait_s, perf/step_s\n",
            r"a console log of verl .*Pass its \.wandb file",
        ),
        # `trainer_log.jsonl` of LLaMA-Factory.
        (
            3 * '{"current_steps": 1, "total_steps": 5, "loss": 0.6, "elapsed_time": "0:01:03"}\n',
            "3 metrics of no framework that rlscope knows, and none of them a duration: current_steps, .*Pass another",
        ),
    ],
)
def test_a_log_without_phases_is_refused_with_its_name_and_the_file_to_pass(
    tmp_path: Path, text: str, found: str
) -> None:
    with pytest.raises(ImportFileError, match=found):
        imported(tmp_path, text, "a.jsonl" if text.startswith('{"') else "a.log")


DEEPSPEED_CHAT = "".join(
    f"|E2E latency=12.50s |Gather latency=0.00s (0.00%) |Generate time={generated:.2f}s (60.00%) |Training time=4.00s\n"
    f"Epoch: 0 | Step: {step} | PPO Epoch: 1 | Actor Loss: 0.1\n"
    for step, generated in enumerate((7.5, 7.25, 7.0))
)


def test_the_durations_of_deepspeed_chat_are_listed_and_can_be_named(tmp_path: Path) -> None:
    """Lines of DeepSpeed's hybrid engine (2023), all of one width, and the step that its trainer prints after them."""
    durations = "E2E latency, Gather latency, Generate time, Training time"
    with pytest.raises(ImportFileError, match=f"with the durations {durations}; .*--phases"):
        imported(tmp_path, DEEPSPEED_CHAT)
    options = import_options(phases="step=E2E latency,generate=Generate time,train=Training time")
    import_run(tmp_path / "a.log", tmp_path / "run", options)
    assert spent_s(tmp_path / "run") == {"trainer generate": 21.75, "trainer train": 12.0}
    assert asked(tmp_path / "run", "SELECT step FROM train_steps ORDER BY step") == [(0,), (1,), (2,)]


@pytest.mark.parametrize(("steps", "is_short"), [(2, True), (3, False)])
def test_a_few_quoted_steps_need_a_longer_log(tmp_path: Path, steps: int, is_short: bool) -> None:
    (tmp_path / "a.log").write_text("".join(verl(step, VERL_PHASES) for step in range(steps)))
    next_step = verdict_words.next_step(analyze(tmp_path / "a.log", page=False))
    assert ("Pass a longer part of the log, with 3 training steps or more." in next_step) is is_short
