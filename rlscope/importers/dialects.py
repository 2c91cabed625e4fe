"""The dialects: each framework's metric names, taken from its source. Tables, no code.

Phases are listed in program order.
"""

from typing import Final

from rlscope.importers.dialect import Dialect, Party, PhaseKind, PhaseMetric
from rlscope.importers.verl import VERL, VERL_2024

_K = PhaseKind

SKYRL: Final = Dialect(
    framework="skyrl",
    title="SkyRL",
    known_by=(("timing/step", "timing/sync_weights"),),
    parties=(
        Party(
            "trainer",
            "trainer",
            ("timing/step",),
            ("timing/step",),
            (
                PhaseMetric("timing/wait_for_generation_buffer", _K.WAIT_SAMPLES),
                PhaseMetric("timing/generate", _K.TAKE),
                PhaseMetric("timing/postprocess_generator_output", _K.OTHER),
                PhaseMetric("timing/convert_to_training_input", _K.OTHER),
                PhaseMetric("timing/fwd_logprobs_values_reward", _K.LOGPROBS),
                PhaseMetric("timing/compute_advantages_and_returns", _K.OTHER),
                PhaseMetric("timing/train_critic_and_policy", _K.TRAIN),
                PhaseMetric("timing/sync_weights", _K.UPDATE),
                PhaseMetric("timing/eval", _K.EVAL, where="auto"),
                PhaseMetric("timing/save_checkpoints", _K.CHECKPOINT, where="auto"),
                PhaseMetric("timing/save_hf_model", _K.CHECKPOINT, where="auto"),
            ),
        ),
    ),
    separate_when=("timing/wait_for_generation_buffer",),
    separate_config=(("trainer.placement.colocate_all", "False"),),
    step_names=("trainer/global_step",),
    columns={
        "loss": ("policy/policy_loss", "policy/final_loss"),
        "grad_norm": ("policy/raw_grad_norm", "policy/grad_norm"),
        "entropy": ("policy/policy_entropy",),
        "reward_mean": ("reward/avg_raw_reward", "reward/mean_raw_reward"),
    },
    reported=("async/", "generate/", "reward/avg_pass"),
    gpus={
        "trainer": (("trainer.placement.policy_num_gpus_per_node", "trainer.placement.policy_num_nodes"),),
        "sampler": (
            ("generator.inference_engine.num_engines", "generator.inference_engine.tensor_parallel_size"),
            ("generator.num_inference_engines", "generator.inference_engine_tensor_parallel_size"),
        ),
    },
    settings={
        "samples_per_step": (("trainer.train_batch_size", "generator.n_samples_per_prompt"),),
        "group_size": (("generator.n_samples_per_prompt",),),
        "max_output_tokens": (("generator.sampling_params.max_generate_length",),),
        "max_running": (("generator.inference_engine.max_num_seqs",),),
        "gpus_per_engine": (
            ("generator.inference_engine.tensor_parallel_size",),
            ("generator.inference_engine_tensor_parallel_size",),
        ),
    },
)
NEMO_RL: Final = Dialect(
    framework="nemo-rl",
    title="NeMo-RL",
    known_by=(("timing/train/total_step_time", "timing/train/policy_training"),),
    parties=(
        Party(
            "trainer",
            "trainer",
            ("timing/train/total_step_time",),
            ("timing/train/total_step_time",),
            (
                PhaseMetric("timing/train/data_processing", _K.OTHER),
                PhaseMetric("timing/train/prepare_for_generation/total", _K.UPDATE, when="colocated"),
                PhaseMetric("timing/train/exposed_generation", _K.WAIT_SAMPLES, when="separate"),
                PhaseMetric("timing/train/generation", _K.GENERATE, when="colocated"),
                PhaseMetric("timing/train/reward_calculation", _K.REWARD),
                PhaseMetric("timing/train/logprob_inference_prep", _K.OTHER),
                PhaseMetric("timing/train/policy_and_reference_logprobs", _K.LOGPROBS),
                PhaseMetric("timing/train/advantage_calculation", _K.OTHER),
                PhaseMetric("timing/train/training_prep", _K.OTHER),
                PhaseMetric("timing/train/policy_training", _K.TRAIN),
                PhaseMetric("timing/train/weight_sync", _K.UPDATE, when="separate"),
                PhaseMetric("timing/train/checkpointing", _K.CHECKPOINT),
            ),
        ),
    ),
    separate_when=("timing/train/exposed_generation", "timing/train/weight_sync"),
    columns={
        "tokens": ("train/total_num_tokens",),
        "loss": ("train/loss",),
        "grad_norm": ("train/grad_norm",),
        "reward_mean": ("train/reward",),
    },
    reported=("timing/train/idle/", "performance/", "train/avg_trajectory_age", "train/generation_lengths"),
    gpus={"trainer": (("cluster.gpus_per_node", "cluster.num_nodes"),)},
    settings={
        "samples_per_step": (("grpo.num_prompts_per_step", "grpo.num_generations_per_prompt"),),
        "group_size": (("grpo.num_generations_per_prompt",),),
        "max_output_tokens": (("policy.generation.max_new_tokens",),),
        "max_staleness": (("grpo.async_grpo.max_trajectory_age_steps",),),
    },
)
OPENRLHF: Final = Dialect(
    framework="openrlhf",
    title="OpenRLHF",
    known_by=(("timing/ppo_train", "timing/step_total"),),
    parties=(
        Party(
            "trainer",
            "trainer",
            ("timing/ppo_train",),
            ("timing/step_total",),
            (
                PhaseMetric(None, _K.WAIT_SAMPLES, when="separate"),
                PhaseMetric("timing/generation", _K.GENERATE, when="colocated"),
                PhaseMetric("timing/make_experience", _K.LOGPROBS),
                PhaseMetric("timing/ppo_train", _K.TRAIN),
                PhaseMetric("timing/broadcast", _K.UPDATE),
            ),
        ),
    ),
    separate_config=(("async_train", "True"), ("train.async_enable", "True")),
    adds_up=True,
    strip=("train/",),
    step_names=("global_step",),
    columns={
        "loss": ("policy_loss",),
        "grad_norm": ("actor_grad_norm", "grad_norm"),
        "entropy": ("entropy_loss",),
        "reward_mean": ("reward",),
    },
    reported=("timing/generation", "response_length", "total_length", "truncated"),
    gpus={
        "trainer": (("actor.num_nodes", "actor.num_gpus_per_node"), ("actor_num_nodes", "actor_num_gpus_per_node")),
        "sampler": (
            ("vllm.num_engines", "vllm.tensor_parallel_size"),
            ("vllm_num_engines", "vllm_tensor_parallel_size"),
        ),
    },
    settings={
        "samples_per_step": (
            ("rollout.batch_size", "rollout.n_samples_per_prompt"),
            ("rollout_batch_size", "n_samples_per_prompt"),
        ),
        "group_size": (("rollout.n_samples_per_prompt",), ("n_samples_per_prompt",)),
        "max_output_tokens": (("rollout.max_new_tokens",), ("generate_max_len",)),
        "gpus_per_engine": (("vllm.tensor_parallel_size",), ("vllm_tensor_parallel_size",)),
    },
)
OPEN_INSTRUCT: Final = Dialect(
    framework="open-instruct",
    title="open-instruct",
    known_by=(
        ("time/trainer_waiting_for_data", "time/training"),
        ("time/trainer_idle_waiting_for_inference", "time/training"),
    ),
    parties=(
        Party(
            "trainer",
            "trainer",
            ("time/trainer_waiting_for_data", "time/trainer_idle_waiting_for_inference", "time/training"),
            ("time/total",),
            (
                PhaseMetric(
                    "time/trainer_waiting_for_data", _K.WAIT_SAMPLES, also=("time/trainer_idle_waiting_for_inference",)
                ),
                PhaseMetric("time/training", _K.TRAIN),
                PhaseMetric("time/weight_sync", _K.UPDATE),
                PhaseMetric("time/saving", _K.CHECKPOINT),
            ),
        ),
    ),
    is_separate=True,
    step_names=("training_step",),
    columns={
        "loss": ("loss/policy_avg",),
        "grad_norm": ("optim/grad_norm",),
        "entropy": ("policy/entropy_avg", "objective/entropy"),
        "reward_mean": ("objective/verifiable_reward", "scores"),
        "clip_ratio": ("policy/clipfrac_avg",),
    },
    reported=(
        "time/getting_response",
        "val/actor_tokens_per_second",
        "learner_tokens_per_second",
        "val/sequence_lengths",
    ),
    gpus={"sampler": (("vllm_num_engines", "vllm_tensor_parallel_size"),)},
    settings={
        "samples_per_step": (("num_unique_prompts_rollout", "num_samples_per_prompt_rollout"),),
        "group_size": (("num_samples_per_prompt_rollout",),),
        "max_output_tokens": (("response_length",),),
        "max_staleness": (("async_steps",),),
        "gpus_per_engine": (("vllm_tensor_parallel_size",),),
    },
)
SLIME: Final = Dialect(
    framework="slime",
    title="slime or miles",
    known_by=(("perf/train_wait_time", "perf/actor_train_time"),),
    parties=(
        Party(
            "trainer",
            "trainer",
            ("perf/train_wait_time",),
            ("perf/step_time",),
            (
                # train_wait covers everything between two trainings, and begins with publishing the weights of the last
                # one.
                PhaseMetric("perf/update_weights_time", _K.UPDATE),
                PhaseMetric("perf/save_model_time", _K.CHECKPOINT),
                PhaseMetric("perf/eval_time", _K.EVAL),
                PhaseMetric(
                    "perf/train_wait_time",
                    _K.TAKE,
                    minus=("perf/update_weights_time", "perf/save_model_time", "perf/eval_time"),
                ),
                PhaseMetric("perf/data_preprocess_time", _K.OTHER),
                PhaseMetric("perf/ref_log_probs_time", _K.LOGPROBS),
                PhaseMetric("perf/log_probs_time", _K.LOGPROBS),
                PhaseMetric("perf/actor_train_time", _K.TRAIN),
            ),
        ),
    ),
    is_separate=True,
    colocated_when=("perf/sleep_time", "perf/wake_up_time"),
    colocated_config=(("colocate", "True"),),
    step_names=("rollout/step", "train/step"),
    columns={
        "loss": ("train/loss",),
        "grad_norm": ("train/grad_norm",),
        "entropy": ("train/entropy_loss",),
        "reward_mean": ("rollout/raw_reward", "rollout/rewards"),
    },
    reported=(
        "perf/rollout_time",
        "perf/longest_sample_tokens",
        "perf/actor_train_tok_per_s",
        "perf/wait_time_ratio",
        "rollout/response_len",
        "rollout/response_lengths",
    ),
    gpus={
        "trainer": (("actor_num_nodes", "actor_num_gpus_per_node"),),
        "sampler": (("rollout_num_gpus",),),
    },
    settings={
        "samples_per_step": (("rollout_batch_size", "n_samples_per_prompt"), ("global_batch_size",)),
        "group_size": (("n_samples_per_prompt",),),
        "max_output_tokens": (("rollout_max_response_len",),),
        "gpus_per_engine": (("rollout_num_gpus_per_engine",),),
    },
)
TRL: Final = Dialect(
    framework="trl",
    title="TRL (AsyncGRPO)",
    known_by=(("perf/rollout_wait_s", "perf/step_s"),),
    parties=(
        Party(
            "trainer",
            "trainer",
            # The first step has no perf/step_s: TRL measures from the end of one step to the end of the next.
            ("perf/step_s", "perf/fwd_bwd_s"),
            ("perf/step_s",),
            (
                PhaseMetric("perf/rollout_wait_s", _K.WAIT_SAMPLES),
                PhaseMetric("perf/fwd_bwd_s", _K.TRAIN),
                PhaseMetric("perf/optimizer_s", _K.TRAIN),
                PhaseMetric("perf/weight_sync_s", _K.UPDATE),
            ),
        ),
    ),
    is_separate=True,
    strip=("train/",),
    step_names=("global_step",),
    columns={
        "tokens": ("batch/forwarded_tokens_per_step",),
        "samples": ("batch/samples_per_step",),
        "loss": ("loss",),
        "grad_norm": ("grad_norm",),
        "entropy": ("entropy",),
        "reward_mean": ("reward",),
        "clip_ratio": ("clip_ratio/region_mean",),
    },
    reported=(
        "perf/weight_sync_",
        "perf/forwarded_tok_s",
        "perf/trained_tok_s",
        "perf/mfu",
        "sample/staleness",
        "sample/dropped_stale",
        "sample/rollout_queue_size",
        "sample/time_in_queue_s",
        "batch/trained_tokens_per_step",
    ),
    settings={"group_size": (("num_generations",),), "max_staleness": (("max_staleness",),)},
    means_over_steps=True,
)
AREAL: Final = Dialect(
    framework="areal",
    title="AReaL",
    known_by=(("timeperf/train_step", "timeperf/rollout"),),
    parties=(
        Party(
            "trainer",
            "trainer",
            ("timeperf/train_step",),
            (),
            (
                PhaseMetric("timeperf/rollout", _K.WAIT_SAMPLES),
                PhaseMetric("timeperf/critic_values", _K.LOGPROBS),
                PhaseMetric("timeperf/recompute_logp", _K.LOGPROBS),
                PhaseMetric("timeperf/ref_logp", _K.LOGPROBS),
                PhaseMetric("timeperf/compute_advantage", _K.OTHER, also=("timeperf/compute_advantages",)),
                PhaseMetric("timeperf/train_step", _K.TRAIN),
                PhaseMetric("timeperf/update_weights", _K.UPDATE),
                PhaseMetric("timeperf/save", _K.CHECKPOINT),
                PhaseMetric("timeperf/checkpoint_for_recover", _K.CHECKPOINT),
                PhaseMetric("timeperf/eval", _K.EVAL),
            ),
        ),
    ),
    is_separate=True,
    columns={
        "loss": ("grpo_actor/update/loss/avg", "ppo_actor/update/loss/avg"),
        "grad_norm": ("grpo_actor/update/grad_norm", "ppo_actor/update/grad_norm"),
        "reward_mean": ("grpo_actor/task_reward/avg", "ppo_actor/task_reward/avg"),
    },
    reported=("rollout/", "grpo_actor/version_stats/", "ppo_actor/version_stats/"),
    settings={
        "group_size": (("gconfig.n_samples",),),
        "max_staleness": (("rollout.max_head_offpolicyness",),),
        "max_output_tokens": (("gconfig.max_new_tokens",),),
    },
)
ROLL: Final = Dialect(
    framework="roll",
    title="ROLL",
    known_by=(("time/step_total", "time/step_train"), ("time/step_train", "time/step_model_update")),
    parties=(
        Party(
            "trainer",
            "trainer",
            ("time/step_train",),
            ("time/step_total",),
            (
                PhaseMetric("time/step_stop_server", _K.OTHER),
                PhaseMetric("time/step_model_update", _K.UPDATE),
                PhaseMetric("time/val_step", _K.EVAL, also=("time/step_val",)),
                PhaseMetric("time/step_rollout", _K.TAKE, also=("time/step_generate",)),
                PhaseMetric(
                    "time/ref_log_probs_values",
                    _K.LOGPROBS,
                    also=(
                        "time/step_ref_log_probs_values_reward",
                        "time/ref_log_probs_values_reward",
                        "time/ref_log_probs",
                    ),
                ),
                PhaseMetric(
                    "time/old_log_probs_values",
                    _K.LOGPROBS,
                    also=("time/step_old_log_probs_values", "time/old_log_probs"),
                ),
                PhaseMetric("time/step_cal_norm_rewards", _K.OTHER),
                PhaseMetric("time/step_cal_token_reward", _K.OTHER),
                PhaseMetric("time/step_adv", _K.OTHER),
                PhaseMetric("time/step_train", _K.TRAIN),
            ),
            late_when="time/step_generate",
        ),
    ),
    separate_config=(("async_generation_ratio", ">"),),
    columns={
        "loss": ("actor/total_loss", "actor_train/total_loss"),
        "grad_norm": ("actor_train/grad_norm",),
        "reward_mean": ("critic/score/mean", "critic/rewards/mean"),
    },
    reported=("system/", "tokens/response_length"),
    settings={
        "samples_per_step": (("rollout_batch_size", "num_return_sequences_in_group"),),
        "group_size": (("num_return_sequences_in_group",),),
        "max_output_tokens": (("response_length",),),
    },
)
PIPELINERL: Final = Dialect(
    framework="pipelinerl",
    title="PipelineRL",
    known_by=(("throughput/sec_per_step", "stats/time_waiting_for_data"),),
    parties=(
        Party(
            "trainer",
            "trainer",
            ("throughput/sec_per_step",),
            ("throughput/sec_per_step",),
            (
                PhaseMetric("stats/time_waiting_for_data", _K.WAIT_SAMPLES, is_cumulative=True),
                PhaseMetric(None, _K.TRAIN),
            ),
        ),
    ),
    is_separate=True,
    step_names=("stats/completed_steps",),
    columns={"loss": ("rl/loss",), "grad_norm": ("stats/grad_norm",), "reward_mean": ("rl/reward",)},
    reported=("stats/lag", "stats/queue", "dataset_stats/", "throughput/tokens_per_sec"),
)
PRIME_RL: Final = Dialect(
    framework="prime-rl",
    title="prime-rl",
    known_by=(
        ("time/forward_backward", "time/wait_for_batch"),
        ("time/generate_completions", "time/update_weights"),
        ("time/wait_for_policy",),
    ),
    parties=(
        Party(
            "trainer",
            "trainer",
            ("time/forward_backward",),
            ("time/step",),
            (
                PhaseMetric("time/broadcast_weights", _K.UPDATE, where="auto"),
                PhaseMetric("time/save_ckpt", _K.CHECKPOINT, where="auto"),
                PhaseMetric("time/wait_for_batch", _K.WAIT_SAMPLES),
                PhaseMetric("time/load_data", _K.OTHER),
                PhaseMetric("time/forward_backward", _K.TRAIN),
            ),
            gpu_ratio=("perf/throughput", "perf/throughput_per_gpu"),
        ),
        Party(
            "sampler",
            "sampler",
            ("time/generate_completions",),
            ("time/step",),
            (
                PhaseMetric("time/wait_for_weight_ckpt", _K.WAIT_CAP, also=("time/wait_for_policy",)),
                PhaseMetric("time/update_weights", _K.UPDATE),
                PhaseMetric("time/generate_completions", _K.GENERATE),
                PhaseMetric("time/save_ckpt", _K.CHECKPOINT, where="auto"),
            ),
        ),
        Party(
            "orchestrator",
            "controller",
            ("time/pack", "time/wait_for_policy"),
            ("time/step",),
            (PhaseMetric("time/wait_for_policy", _K.WAIT_CAP), PhaseMetric("time/pack", _K.OTHER)),
        ),
    ),
    is_separate=True,
    columns={"loss": ("loss/mean",), "grad_norm": ("optim/grad_norm",), "entropy": ("entropy/mean",)},
    reported=(
        "off_policy/",
        "progress/ckpt_step",
        "progress/tokens",
        "perf/throughput",
        "perf/mfu",
        "reward/mean",
        "seq_len/mean",
        "seq_len/max",
        "mismatch_kl/mean",
    ),
    settings={
        "samples_per_step": (("batch_size",),),
        "group_size": (("rollouts_per_example",),),
        "max_staleness": (("max_off_policy_steps",), ("async_level",), ("max_async_level",)),
    },
)

DIALECTS: Final = (
    VERL,
    VERL_2024,
    SKYRL,
    NEMO_RL,
    OPENRLHF,
    OPEN_INSTRUCT,
    SLIME,
    TRL,
    AREAL,
    ROLL,
    PIPELINERL,
    PRIME_RL,
)
"""All dialects. No dialect's names satisfy another dialect's `known_by`."""
