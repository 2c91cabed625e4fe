"""The names under which each framework writes what a step of its trainer took: tables, no code.

A dialect is one framework's set of names. Its parties are the processes that log: mostly the trainer alone. A phase is
a metric in seconds, and what the worker does meanwhile; phases are listed in the order of the program. A metric whose
time lies inside that of another phase is left out of the table, since it would count twice.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, Literal


class Kind(StrEnum):
    """What a worker does in a phase."""

    GENERATE = "generate"
    TAKE = "take"
    """Generates where the roles share their GPUs, waits for samples where they do not."""
    WAIT_SAMPLES = "samples"
    WAIT_CAP = "staleness_cap"
    WAIT_BARRIER = "barrier"
    REWARD = "reward"
    LOGPROBS = "logprobs"
    OTHER = "other"
    CRITIC = "critic"
    """Trains a model that is not the policy."""
    TRAIN = "train"
    UPDATE = "update"
    """Publishes the policy's weights, or applies them."""
    SWITCH = "switch"
    """Moves weights or memory between training and generation without a new version."""
    CHECKPOINT = "checkpoint"
    EVAL = "eval"


@dataclass(frozen=True, slots=True)
class Phase:
    """A metric in seconds and what it is the time of."""

    name: str | None
    """None: what the other phases leave of the step."""
    kind: Kind
    minus: tuple[str, ...] = ()
    """Metrics whose time lies inside this one and belongs to other phases."""
    is_cumulative: bool = False
    """Whether the metric counts from the start of the run."""
    where: Literal["inside", "before", "after", "auto"] = "inside"
    """Of the time that the step's own metric counts. auto: inside if the sums close better that way, else before."""
    also: tuple[str, ...] = ()
    """Other names of the same metric, of other releases."""


@dataclass(frozen=True, slots=True)
class Party:
    """A process that logs steps."""

    worker: str
    role: Literal["trainer", "sampler", "controller"]
    known_by: tuple[str, ...]
    """A row with any of these is this party's."""
    step: tuple[str, ...]
    """The time of the whole step, by its names; none: the sum of the phases."""
    phases: tuple[Phase, ...]
    gpu_ratio: tuple[str, str] | None = None
    """Two rates whose quotient is the number of GPUs."""
    gpu_work: tuple[str, str, str] | None = None
    """Tokens, seconds and tokens per second and GPU, of which the number of GPUs follows."""


Paths = tuple[str, ...]
"""Settings of a framework's config, dotted; their product is meant."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """The names of one framework."""

    framework: str
    """As `--as` takes it."""
    title: str
    known_by: tuple[str, ...]
    """All of them are found in a file of this dialect."""
    parties: tuple[Party, ...]
    separate_when: tuple[str, ...] = ()
    """Names, or with a / at the end their beginnings, that only runs with separate trainer and sampler GPUs write."""
    separate_config: tuple[tuple[str, str], ...] = ()
    """The same of settings: a dotted path, and words of which its value contains one."""
    is_separate: bool = False
    """Whether all runs have separate GPUs."""
    strip: tuple[str, ...] = ()
    """Beginnings of names that a writer puts before all of them."""
    step_names: tuple[str, ...] = ()
    """Metrics that hold the optimizer step, where the record's own step counts something else."""
    columns: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    """Columns of train_steps, by the names of the metrics."""
    reported: tuple[str, ...] = ()
    """Beginnings of names of the framework's own figures, which are shown as it reports them."""
    gpus: Mapping[str, tuple[Paths, ...]] = field(default_factory=dict[str, tuple[Paths, ...]])
    """GPUs by role: the first product of settings that is known."""
    settings: Mapping[str, tuple[Paths, ...]] = field(default_factory=dict[str, tuple[Paths, ...]])
    """Entries of run.json's config: the first product of settings that is known."""
    eras: tuple[tuple[str, str], ...] = ()
    """Beginnings of names, and the set of names that they show; the first that is met."""
    closes: bool = False
    """Whether the phases are known to add up to the step: a sum that is off then means unknown names."""
    means_over_steps: bool = False
    """Whether a row is a mean over the steps since the row before it."""


_K = Kind

_VERL_PHASES: Final = (
    Phase("timing_s/gen", _K.TAKE),
    Phase("timing_s/switch_wait", _K.WAIT_BARRIER),
    Phase("timing_s/switch_to_trainer", _K.SWITCH),
    Phase("timing_s/gen_max", _K.GENERATE),
    Phase("timing_s/reward", _K.REWARD),
    Phase("timing_s/old_log_prob", _K.LOGPROBS),
    Phase("timing_s/ref", _K.LOGPROBS),
    Phase("timing_s/values", _K.LOGPROBS),
    Phase("timing_s/adv", _K.OTHER),
    Phase("timing_s/dump_rollout_generations", _K.OTHER),
    Phase("timing_s/update_critic", _K.CRITIC),
    Phase("timing_s/update_actor", _K.TRAIN),
    Phase("timing_s/update_weights", _K.UPDATE, also=("timing_s/timing_s/param_sync", "timing_s/param_sync")),
    Phase("timing_s/switch_to_rollout", _K.SWITCH),
    Phase("timing_s/testing", _K.EVAL),
    Phase("timing_s/save_checkpoint", _K.CHECKPOINT),
)
_VERL_2024_PHASES: Final = (
    Phase("timing/gen", _K.TAKE),
    Phase("timing/old_log_prob", _K.LOGPROBS),
    Phase("timing/ref", _K.LOGPROBS),
    Phase("timing/values", _K.LOGPROBS),
    Phase("timing/adv", _K.OTHER),
    Phase("timing/update_critic", _K.CRITIC),
    Phase("timing/update_actor", _K.TRAIN),
    Phase("timing/testing", _K.EVAL),
    Phase("timing/save_checkpoint", _K.CHECKPOINT),
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
    "max_running_per_engine": (("actor_rollout_ref.rollout.max_num_seqs",),),
    "gpus_per_engine": (("actor_rollout_ref.rollout.tensor_model_parallel_size",),),
    "total_steps": (("trainer.total_training_steps",),),
}

VERL: Final = Dialect(
    framework="verl",
    title="verl",
    known_by=("timing_s/step", "timing_s/gen"),
    parties=(
        Party(
            "trainer",
            "trainer",
            ("timing_s/step", "timing_s/gen"),
            ("timing_s/step",),
            _VERL_PHASES,
            gpu_work=("perf/total_num_tokens", "perf/time_per_step", "perf/throughput"),
        ),
    ),
    separate_when=("timing_s/update_weights", "timing_s/timing_s/param_sync", "fully_async/", "training/off_policy/"),
    separate_config=(("trainer.v1.trainer_mode", "separate"),),
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
    known_by=("timing/gen", "timing/update_actor"),
    parties=(Party("trainer", "trainer", ("timing/gen", "timing/update_actor"), (), _VERL_2024_PHASES),),
    columns=_VERL_COLUMNS,
    reported=("response_length/mean", "response_length/max"),
    gpus=_VERL_GPUS,
    settings=_VERL_SETTINGS,
    eras=(("timing/", "timing"),),
)

DIALECTS: Final = (VERL, VERL_2024)
"""All of them. The names of one never make up another's `known_by`."""
