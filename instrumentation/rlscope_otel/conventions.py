"""Span names, attribute keys and metrics under `rlscope.*`, with the attributes that map spans to trace tables.

A span with another name, or without a required attribute, goes to the `spans` table. The stored columns are in
`schema.py`; `span_rows.py` maps attributes to columns.
"""

from typing import Final, NamedTuple

from rlscope_otel import schema

SCOPE_NAME: Final = "rlscope_otel"


class Attribute(NamedTuple):
    """One attribute: key, type (of each element if `many`), unit, description, and whether it is required."""

    key: str
    type: type[str] | type[int] | type[float] | type[bool]
    unit: str
    brief: str
    required: bool = False
    many: bool = False


WAIT_REASON: Final = Attribute(
    "rlscope.wait.reason", str, "", "what the worker waits for: " + " | ".join(schema.WAIT_REASONS)
)

STEP: Final = Attribute("rlscope.train.step", int, "", "the optimizer step", required=True)
VERSION_IN: Final = Attribute(
    "rlscope.train.version_in", int, "", "latest policy version published when the step started", required=True
)
VERSION_OUT: Final = Attribute(
    "rlscope.train.version_out", int, "", "policy version published after this step; version_in if absent"
)
SAMPLES: Final = Attribute("rlscope.train.samples", int, "{sample}", "samples processed by this worker")
TOKENS: Final = Attribute("rlscope.train.tokens", int, "{token}", "prompt and response tokens processed by this worker")
LOSS: Final = Attribute("rlscope.train.loss", float, "1", "loss")
GRAD_NORM: Final = Attribute("rlscope.train.grad_norm", float, "1", "gradient norm")
ENTROPY: Final = Attribute("rlscope.train.entropy", float, "nat", "mean token entropy")
REWARD_MEAN: Final = Attribute("rlscope.train.reward_mean", float, "1", "mean reward of the batch")
CLIP_RATIO: Final = Attribute(
    "rlscope.train.clip_ratio", float, "1", "share of tokens whose importance ratio was clipped, 0..1"
)
TRUNCATED_RATIO: Final = Attribute(
    "rlscope.train.truncated_ratio", float, "1", "share of the samples that were cut at the length limit, 0..1"
)
IMPORTANCE_STALENESS: Final = Attribute(
    "rlscope.train.importance.staleness", int, "", "token staleness of each importance-ratio moment", many=True
)
IMPORTANCE_TOKENS: Final = Attribute(
    "rlscope.train.importance.tokens", int, "{token}", "tokens of each importance-ratio moment", many=True
)
IMPORTANCE_SUM: Final = Attribute(
    "rlscope.train.importance.sum_w", float, "1", "sum of the importance ratio in each moment", many=True
)
IMPORTANCE_SQUARES: Final = Attribute(
    "rlscope.train.importance.sum_w2", float, "1", "sum of the squared importance ratio in each moment", many=True
)
FRESH_TOKENS: Final = Attribute(
    "rlscope.train.fresh.tokens",
    int,
    "{token}",
    "tokens that the weights being trained sampled, on a context that they also computed",
)
FRESH_SUM: Final = Attribute("rlscope.train.fresh.sum_w", float, "1", "sum of the importance ratio of fresh tokens")
FRESH_SQUARES: Final = Attribute(
    "rlscope.train.fresh.sum_w2", float, "1", "sum of the squared importance ratio of fresh tokens"
)

WEIGHTS_VERSION: Final = Attribute("rlscope.weights.version", int, "", "the policy version", required=True)
WEIGHTS_LABEL: Final = Attribute("rlscope.weights.label", str, "", "the framework's own name for the version")
WEIGHTS_BYTES: Final = Attribute("rlscope.weights.size", int, "By", "bytes transferred")
WEIGHTS_PAUSED: Final = Attribute("rlscope.weights.paused", bool, "", "whether generation was paused during the update")
WEIGHTS_KV: Final = Attribute("rlscope.weights.kv", str, "", "what happened to the KV cache: kept | recomputed")


class SpanName(NamedTuple):
    """One span name: the table its spans go to, what it covers, and its attributes."""

    name: str
    table: str
    brief: str
    attributes: tuple[Attribute, ...] = ()


TRAIN_STEP: Final = SpanName(
    "rlscope.train_step",
    "train_steps",
    "one optimizer step on one trainer worker",
    (
        STEP,
        VERSION_IN,
        VERSION_OUT,
        SAMPLES,
        TOKENS,
        LOSS,
        GRAD_NORM,
        ENTROPY,
        REWARD_MEAN,
        CLIP_RATIO,
        TRUNCATED_RATIO,
        IMPORTANCE_STALENESS,
        IMPORTANCE_TOKENS,
        IMPORTANCE_SUM,
        IMPORTANCE_SQUARES,
        FRESH_TOKENS,
        FRESH_SUM,
        FRESH_SQUARES,
    ),
)

_WEIGHTS: Final = (WEIGHTS_VERSION, WEIGHTS_LABEL, WEIGHTS_BYTES, WEIGHTS_PAUSED, WEIGHTS_KV)
_WEIGHT_BRIEFS: Final = {
    "publish": "the trainer publishes a policy version",
    "transfer": "a policy version is transferred to an engine",
    "apply": "an engine loads a policy version and starts to use it",
    "drain": "part of an update: generation is stopped, or running requests end",
    "gather": "part of an update: the trainer collects the shards of its weights",
    "convert": "part of an update: weights get the names, types and layout of the engine",
    "install": "part of an update: the engine puts the weights it has received in place",
    "resume": "part of an update: from weights in place to generation that goes on",
}
WEIGHT_SPANS: Final = {
    phase: SpanName(f"rlscope.weights.{phase}", "weight_updates", _WEIGHT_BRIEFS[phase], _WEIGHTS)
    for phase in schema.UPDATE_PHASES
}

ACTIVITY_SPANS: Final = {
    activity: SpanName(
        f"rlscope.{activity}",
        "activities",
        f"activity of the worker: {activity}",
        (WAIT_REASON,) if activity == "wait" else (),
    )
    for activity in schema.ACTIVITIES
}

SPAN_NAMES: Final = (TRAIN_STEP, *WEIGHT_SPANS.values(), *ACTIVITY_SPANS.values())


class Metric(NamedTuple):
    """One metric: name, UCUM unit, description, and whether it is a counter."""

    name: str
    unit: str
    brief: str
    monotonic: bool
    attributes: tuple[Attribute, ...] = ()


RUN_ID: Final = Attribute("rlscope.run.id", str, "", "the run id in run.json; empty until run.json is written")
WORKER_ID: Final = Attribute("rlscope.worker.id", str, "", "the worker", required=True)
ROLE: Final = Attribute("rlscope.role", str, "", " | ".join(schema.ROLES), required=True)
QUEUE: Final = Attribute("rlscope.queue", str, "", "the queue's name", required=True)
STALENESS: Final = Attribute(
    "rlscope.staleness", str, "", "bucket of token staleness: 0, 1, 2, 3-4, ...", required=True
)
STATE: Final = Attribute(
    "rlscope.state", str, "", "an activity, train, weight_update, forward_pass or between_passes", required=True
)
PHASE: Final = Attribute("rlscope.weights.phase", str, "", " | ".join(schema.UPDATE_PHASES), required=True)
OUTCOME: Final = Attribute("rlscope.outcome", str, "", " | ".join(schema.DELIVERY_OUTCOMES), required=True)
TABLE: Final = Attribute("rlscope.table", str, "", "a table of the trace", required=True)

_WHO: Final = (RUN_ID, WORKER_ID, ROLE)


def _gauge(name: str, unit: str, brief: str, *more: Attribute) -> Metric:
    return Metric(name, unit, brief, False, (*_WHO, *more))


def _counter(name: str, unit: str, brief: str, *more: Attribute) -> Metric:
    return Metric(name, unit, brief, True, (*_WHO, *more))


RUNNING_REQUESTS: Final = _gauge("rlscope.engine.running", "{request}", "requests in the engine's last batch")
WAITING_REQUESTS: Final = _gauge(
    "rlscope.engine.waiting", "{request}", "requests waiting in the engine at its last pass"
)
KV_USED: Final = _gauge("rlscope.engine.kv.used", "{token}", "tokens in the KV cache, last value")
KV_CAPACITY: Final = _gauge("rlscope.engine.kv.capacity", "{token}", "capacity of the KV cache")
DECODE_TOKENS: Final = _counter("rlscope.engine.decode", "{token}", "output tokens produced by the engine")
QUEUE_DEPTH: Final = _gauge("rlscope.queue.depth", "{sample}", "samples in the queue, last value", QUEUE)
QUEUE_CAPACITY: Final = _gauge("rlscope.queue.capacity", "{sample}", "maximum number of samples in the queue", QUEUE)
DELIVERIES: Final = _counter("rlscope.deliveries", "{sample}", "samples that left the queue, by outcome", OUTCOME)
TRAIN_STEPS: Final = _counter("rlscope.train.steps", "{step}", "optimizer steps of this worker")
LAST_STEP: Final = _gauge("rlscope.train.last_step", "s", "end of this worker's last step, UTC epoch seconds")
STEP_PERIOD: Final = _gauge(
    "rlscope.train.period", "s", "median time between step ends over the last six hours; absent until there are three"
)
TRAINED_TOKENS: Final = _counter(
    "rlscope.train.staleness",
    "{token}",
    "tokens trained, by staleness, from the importance moments of the train steps",
    STALENESS,
)
TOKEN_AGE: Final = _counter(
    "rlscope.train.token_age", "{version}", "sum of the staleness of those tokens, to compute the mean"
)
OVER_CAP: Final = _counter(
    "rlscope.train.over_cap",
    "{token}",
    "those tokens whose staleness exceeds the run's max_staleness; absent without a cap",
)
VERSION: Final = _gauge("rlscope.weights.latest", "{version}", "latest policy version", PHASE)
UPDATES: Final = _counter("rlscope.weights.updates", "{update}", "completed weight updates", PHASE)
UPDATE_TIME: Final = _counter("rlscope.weights.update.time", "s", "total duration of those updates", PHASE)
WORKER_TIME: Final = _counter(
    "rlscope.worker.time", "s", "seconds by state, counting the innermost", STATE, WAIT_REASON
)
WORKER_GPUS: Final = _gauge("rlscope.worker.gpus", "{gpu}", "GPUs owned by the worker")
HEARTBEAT: Final = _gauge(
    "rlscope.worker.heartbeat", "s", "last complete flush, UTC epoch seconds; absent once stopped"
)
STOPPED: Final = _gauge("rlscope.worker.stopped", "s", "when the worker stopped, UTC epoch seconds; absent before")
ROWS_DROPPED: Final = _counter(
    "rlscope.rows.dropped", "{row}", "rows lost: the buffer was full, or writing failed", TABLE
)
ROWS_WRITTEN: Final = _counter("rlscope.rows.written", "{row}", "rows written to disk", TABLE)

METRICS: Final = (
    RUNNING_REQUESTS,
    WAITING_REQUESTS,
    KV_USED,
    KV_CAPACITY,
    DECODE_TOKENS,
    QUEUE_DEPTH,
    QUEUE_CAPACITY,
    DELIVERIES,
    TRAIN_STEPS,
    LAST_STEP,
    STEP_PERIOD,
    TRAINED_TOKENS,
    TOKEN_AGE,
    OVER_CAP,
    VERSION,
    UPDATES,
    UPDATE_TIME,
    WORKER_TIME,
    WORKER_GPUS,
    HEARTBEAT,
    STOPPED,
    ROWS_DROPPED,
    ROWS_WRITTEN,
)
