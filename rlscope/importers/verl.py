"""verl's dialects: the names of its metrics since 2025, and those of 2024. A table, no code.

Runs whose samplers have their own GPUs are recognized by metrics that only asynchronous trainers write, or by the
config.
"""

from typing import Final

from rlscope.importers.dialect import Dialect, Party, PhaseKind, PhaseMetric

_K = PhaseKind

_VERL_PHASES: Final = (
    PhaseMetric("timing_s/wait_for_enough_samples", _K.WAIT_SAMPLES),
    PhaseMetric("timing_s/gen", _K.TAKE, also=("timing_s/wait_prev_gen",)),
    PhaseMetric("timing_s/gen_max", _K.TAKE),
    # Runs that train one step behind send the weights before the step trains; update_weights lies inside.
    PhaseMetric("timing_s/sync_rollout_weights", _K.UPDATE),
    PhaseMetric("timing_s/switch_wait", _K.WAIT_BARRIER),
    PhaseMetric("timing_s/switch_to_trainer", _K.SWITCH),
    PhaseMetric("timing_s/reward", _K.REWARD),
    PhaseMetric("timing_s/old_log_prob", _K.LOGPROBS),
    PhaseMetric("timing_s/ref", _K.LOGPROBS),
    PhaseMetric("timing_s/values", _K.LOGPROBS),
    PhaseMetric("timing_s/adv", _K.OTHER),
    PhaseMetric("timing_s/dump_rollout_generations", _K.OTHER),
    PhaseMetric("timing_s/update_critic", _K.CRITIC),
    PhaseMetric("timing_s/update_actor", _K.TRAIN),
    PhaseMetric("timing_s/update_weights", _K.UPDATE, minus=("timing_s/sync_rollout_weights",)),
    PhaseMetric("timing_s/timing_s/param_sync", _K.UPDATE, also=("timing_s/param_sync",), where="auto"),
    PhaseMetric("timing_s/switch_to_rollout", _K.SWITCH),
    PhaseMetric("timing_s/testing", _K.EVAL),
    PhaseMetric("timing_s/save_checkpoint", _K.CHECKPOINT),
)
_VERL_2024_PHASES: Final = (
    PhaseMetric("timing/gen", _K.TAKE),
    PhaseMetric("timing/old_log_prob", _K.LOGPROBS),
    PhaseMetric("timing/ref", _K.LOGPROBS),
    PhaseMetric("timing/values", _K.LOGPROBS),
    PhaseMetric("timing/adv", _K.OTHER),
    PhaseMetric("timing/update_critic", _K.CRITIC),
    PhaseMetric("timing/update_actor", _K.TRAIN),
    PhaseMetric("timing/testing", _K.EVAL),
    PhaseMetric("timing/save_checkpoint", _K.CHECKPOINT),
)
_VERL_COLUMNS: Final = {
    "tokens": ("perf/total_num_tokens",),
    "loss": ("actor/pg_loss",),
    "grad_norm": ("actor/grad_norm",),
    "entropy": ("actor/entropy", "actor/entropy_loss"),
    "reward_mean": ("critic/rewards/mean", "critic/score/mean"),
    "clip_ratio": ("actor/pg_clipfrac",),
}
_VERL_GPUS: Final = {
    "trainer": (("trainer.n_gpus_per_node", "trainer.nnodes"),),
    "sampler": (
        ("rollout.n_gpus_per_node", "rollout.nnodes"),
        ("actor_rollout_ref.rollout.n_gpus_per_node", "actor_rollout_ref.rollout.nnodes"),
    ),
}
_VERL_SETTINGS: Final = {
    "samples_per_step": (("data.train_batch_size", "actor_rollout_ref.rollout.n"),),
    "group_size": (("actor_rollout_ref.rollout.n",),),
    "max_output_tokens": (("data.max_response_length",),),
    "max_running": (("actor_rollout_ref.rollout.max_num_seqs",),),
    "gpus_per_engine": (("actor_rollout_ref.rollout.tensor_model_parallel_size",),),
    "total_steps": (("trainer.total_training_steps",),),
}

VERL: Final = Dialect(
    framework="verl",
    title="verl",
    known_by=(("timing_s/step", "timing_s/gen"), ("timing_s/step", "timing_s/wait_prev_gen")),
    parties=(
        Party(
            "trainer",
            "trainer",
            ("timing_s/step", "timing_s/gen", "timing_s/wait_prev_gen"),
            ("timing_s/step",),
            _VERL_PHASES,
            gpu_work=("perf/total_num_tokens", "perf/time_per_step", "perf/throughput"),
        ),
    ),
    # timing_s/update_weights is not listed: since 0.7.1, runs that share their GPUs log it too.
    separate_when=(
        "timing_s/timing_s/param_sync",
        "timing_s/param_sync",
        "timing_s/sync_rollout_weights",
        "timing_s/switch_wait",
        "timing_s/switch_to_trainer",
        "timing_s/switch_to_rollout",
        "fully_async/",
        "separate_async/",
    ),
    separate_config=(
        ("trainer.v1.trainer_mode", "separate"),
        ("actor_rollout_ref.rollout.nnodes", ">"),
        ("rollout.nnodes", ">"),
    ),
    unsettled_when=("training/off_policy/",),
    behind={
        "training/off_policy/trajectory_staleness/mean": 0.0,
        "training/off_policy/trajectory_spans/mean": 1.0,
    },
    columns=_VERL_COLUMNS,
    reported=(
        "fully_async/",
        "training/off_policy/",
        "perf/throughput",
        "perf/mfu/",
        "response_length/mean",
        "response_length/max",
        "response_length/clip_ratio",
        "timing_s/generate_sequences",
        "timing_s/reshard",
    ),
    gpus=_VERL_GPUS,
    settings=_VERL_SETTINGS,
    eras=(
        ("timing_s/agent_loop/", "timing_s, agent_loop"),
        ("timing_s/generate_sequences", "timing_s, generate_sequences"),
        ("perf/total_num_tokens", "timing_s, perf"),
        ("timing_s/", "timing_s without perf"),
    ),
    closes=True,
)
VERL_2024: Final = Dialect(
    framework="verl",
    title="verl",
    known_by=(("timing/gen", "timing/update_actor"),),
    parties=(Party("trainer", "trainer", ("timing/gen", "timing/update_actor"), (), _VERL_2024_PHASES),),
    columns=_VERL_COLUMNS,
    reported=("response_length/mean", "response_length/max"),
    gpus=_VERL_GPUS,
    settings=_VERL_SETTINGS,
    eras=(("timing/", "timing"),),
)
