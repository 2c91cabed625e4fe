"""The hidden truth of a simulated run: what everything costs. Seconds, tokens, GPUs; nothing here acts.

A world says what a real system would only show through its trace. The layout, how its GPUs are split, is not part of
it: one world is simulated at many layouts, and what a layout yields is then known and not estimated.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

StalenessPolicy = Literal["none", "drop", "publication_waits", "admission"]
FullQueue = Literal["wait", "drop_oldest"]
Delivery = Literal["group", "sample"]
QueueOrder = Literal["oldest_first", "fifo", "lifo"]


@dataclass(frozen=True, slots=True)
class Passes:
    """What the forward passes of one engine cost.

    A decode pass over b requests that hold K tokens takes
    `(weights_s^h + (request_s b)^h)^(1/h) + experts_s (1 - (1 - expert_ratio)^b) + kv_token_s K`, h being the
    sharpness, with b rounded up to a multiple of `padded_to` everywhere: engines replay graphs of fixed batch sizes.
    """

    weights_s: float
    request_s: float
    sharpness: float = 3.0
    experts_s: float = 0.0
    """Reading all experts of a mixture once."""
    expert_ratio: float = 0.0
    """Share of the experts that one token needs."""
    kv_token_s: float = 0.0
    padded_to: int = 1
    between_s: float = 0.0
    """After each pass, outside of it: scheduling, sampling, detokenizing."""
    prefill_tokens_per_s: float = 50_000.0
    mixes_prefill: bool = False
    """Prompts ride on a decode pass and lengthen it; else they have passes of their own while decoding stands still."""
    noise_sd: float = 0.0
    """Standard deviation of the logarithm of a pass's length; the mean length does not change."""
    hiccup_ratio: float = 0.0
    """Share of the passes that take ten times as long."""


@dataclass(frozen=True, slots=True)
class Responses:
    """How long prompts and responses are: lognormal, some of them longer by a factor, cut at the cap."""

    median_tokens: float
    sigma: float
    max_output_tokens: int
    group_share_ratio: float = 0.0
    """Share of the variance of the logarithm that the samples of one prompt have in common."""
    long_ratio: float = 0.0
    """Share of the samples that are `long_factor` times as long."""
    long_factor: float = 1.0
    growth_ratio: float = 0.0
    """Lengths grow by this share with every version."""
    prompt_tokens: int = 50
    """Mean; a prompt has half of it to one and a half, evenly."""


@dataclass(frozen=True, slots=True)
class Rollouts:
    """How samples are asked for, and what they meet on the way."""

    samples_per_step: int
    group_size: int
    filtered_ratio: float = 0.0
    """Share of the groups that the trainer throws away because all their rewards are equal."""
    environment_ratio: float = 0.0
    """Share of the samples that leave the engine once, in mid-response, to wait for an environment."""
    environment_s: float = 0.0
    """Mean of that wait, exponentially distributed. The sample keeps its slot and its KV."""
    delivery: Delivery = "group"
    """What is started, queued and taken as one: a whole group on one engine, or each sample by itself on any."""

    @property
    def unit_samples(self) -> int:
        """Samples that are started, queued and taken as one."""
        return self.group_size if self.delivery == "group" else 1


@dataclass(frozen=True, slots=True)
class Training:
    """What a step of all trainers together costs: `overhead_s + tokens / rate(gpus)`, prompts included."""

    tokens_per_gpu_s: float
    """With `reference_gpus` trainer GPUs."""
    reference_gpus: int
    scaling_exponent: float = 1.0
    """g in `rate(gpus) = tokens_per_gpu_s reference_gpus (gpus / reference_gpus)^g`."""
    overhead_s: float = 0.0
    logprobs_ratio: float = 0.0
    """A log-probability pass before the step, as a share of `tokens / rate(gpus)`."""
    noise_sd: float = 0.0
    checkpoint_steps: int = 0
    """Steps between checkpoints; 0: none."""
    checkpoint_s: float = 0.0
    batches_ahead: int = 0
    """Batches that are taken before a step starts, besides its own."""
    steps_per_version: int = 1
    """Optimizer steps of one publication."""
    shares_batch: bool = False
    """Whether all steps of a version are dealt out of one batch that is taken at once; else each takes its own."""
    micro_batch_samples: int = 0
    """Samples that a step trains on as soon as it has taken them, and then waits for more; 0: all of its batch."""
    records_micro_batches: bool = False
    """Whether each of those is a row of its own."""


@dataclass(frozen=True, slots=True)
class Updates:
    """What a new policy version costs."""

    publish_s: float = 0.0
    """The trainers can do nothing else meanwhile."""
    transfer_s: float = 0.0
    """On its way to the engines; nobody stands still."""
    apply_s: float = 0.0
    """Each engine stands still, between two passes."""
    kv_kept: bool = True
    """False: the engine computes the KV of everything that runs again, at the speed of prefill."""


@dataclass(frozen=True, slots=True)
class Evaluations:
    """What engines do besides, once they have new weights: requests of their samples stand still meanwhile."""

    every_versions: int = 0
    """0: never."""
    seconds: float = 0.0
    """Of all engines together, which share the work, or of each."""
    is_shared: bool = True
    activity: str = "eval"
    """As which it is recorded."""
    requests: int = 0
    """That run in passes which are recorded too; 0: no pass is."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What holds engines back or throws samples away. None: no such limit."""

    queue_capacity_samples: int | None = None
    full_queue: FullQueue = "wait"
    max_staleness: int | None = None
    staleness_policy: StalenessPolicy = "none"
    """How the cap is kept; see `gate.py` and `trainer.py`."""
    waits_for_queued: bool = True
    """Whether publications that wait for the cap also wait for what is queued, and not only for what runs."""
    max_in_flight_samples: int | None = None
    in_flight_until_trained: bool = False
    """Whether samples count against that limit until their step ends, and not only until they are taken."""
    queue_order: QueueOrder = "oldest_first"


@dataclass(frozen=True, slots=True)
class Change:
    """What becomes slower or longer for good in the middle of a run, by a factor each."""

    from_version: int = 0
    """The version from which on it is; a step trains with the version before it."""
    training: float = 1.0
    publish: float = 1.0
    passes: float = 1.0
    lengths: float = 1.0

    def of(self, factor: float, version: int) -> float:
        """One of the factors, at a version."""
        return factor if version >= self.from_version else 1.0


@dataclass(frozen=True, slots=True)
class World:
    """Everything about a system but its layout."""

    name: str
    gpus: int
    passes: Passes
    responses: Responses
    rollouts: Rollouts
    training: Training
    updates: Updates = Updates()
    evaluations: Evaluations = Evaluations()
    limits: Limits = Limits()
    change: Change = Change()
    gpus_per_engine: int = 1
    gpus_per_trainer_replica: int = 1
    kv_capacity_tokens: int | None = None
    """Of one engine."""
    engine_speed_sd: float = 0.0
    """Standard deviation of the logarithm of the engines' speeds; an engine has one speed at every layout."""
    slow_engine_factor: float = 1.0
    """How many times longer the passes of a slow engine take."""
    slow_engine_every: int | None = None
    """2: every other engine is slow, from the first on. None: the first alone."""
    startup_s: float = 1.0
    most_passes_per_row: int = 1
    """Like passes that a row of `engine_steps` may hold."""
    device_name: str | None = None
    model: Mapping[str, object] | None = None
    """What run.json says of the model."""
    states_scheduling: bool = True
    """Whether run.json says how rollouts are dispatched and queued; README's hooks alone do not."""
    clocks_off_s: tuple[float, ...] = ()
    """Of the hosts that engines are on in turn, before the trainers' host; empty: all are on one host."""


@dataclass(frozen=True, slots=True)
class Layout:
    """How the GPUs are split, and how many requests an engine may have."""

    trainer_gpus: int
    sampler_gpus: int
    max_running: int
