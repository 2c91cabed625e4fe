"""The trace format: every table that capture writes and analysis reads, with a unit and a sentence per column.

This file is the contract. The recorder builds its Arrow batches from it, the store builds its typed empty tables from
it, and `docs/trace-format.md` is printed from it. It does not say how files are named or when they are written:
that is `parquet.py`.

A trace holds facts only. Times are BIGINT nanoseconds since the UTC epoch. No data is NULL, never 0.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownParameterType=false
# pyright: reportUnknownArgumentType=false, reportMissingTypeStubs=false
# pyarrow ships no types; it is confined to this module and `parquet.py`.

from typing import Final, NamedTuple

import pyarrow as pa

FORMAT_NAME: Final = "rlscope-trace"
FORMAT_VERSION: Final = 1
WORKER_ID_PATTERN: Final = r"[A-Za-z0-9_.-]{1,128}"

ROLES: Final = ("sampler", "trainer", "colocated", "controller")
ACTIVITIES: Final = (
    "startup",
    "generate",
    "train",
    "logprobs",
    "wait",
    "weight_update",
    "checkpoint",
    "eval",
    "reward",
    "other",
)
WAIT_REASONS: Final = (
    "samples",
    "staleness_cap",
    "requests",
    "backpressure",
    "barrier",
    "environment",
    "weights",
)
VERSION_SOURCES: Final = ("engine", "segment", "time_join", "admission")
FINISH_REASONS: Final = ("stop", "length", "abort", "error", "unfinished")
DELIVERY_OUTCOMES: Final = ("trained", "dropped_stale", "filtered", "abandoned")
UPDATE_PHASES: Final = ("publish", "transfer", "apply")


class Column(NamedTuple):
    """One stored column: its Arrow type, its unit ("" for a name), what it means, and whether it may be NULL."""

    name: str
    type: pa.DataType
    unit: str
    meaning: str
    nullable: bool = False


VERSION_RUN: Final = pa.struct(
    [
        pa.field("version", pa.int64(), nullable=False),
        pa.field("start", pa.int32(), nullable=False),
        pa.field("end", pa.int32(), nullable=False),
    ]
)
IMPORTANCE_MOMENT: Final = pa.struct(
    [
        pa.field("staleness", pa.int32(), nullable=False),
        pa.field("tokens", pa.int64(), nullable=False),
        pa.field("sum_w", pa.float64(), nullable=False),
        pa.field("sum_w2", pa.float64(), nullable=False),
    ]
)

_STRING, _INT, _LONG, _REAL = pa.string(), pa.int32(), pa.int64(), pa.float64()

SAMPLES: Final = (
    Column("sample_id", _STRING, "", "the sample, unique in the run"),
    Column("segment", _INT, "", "0, 1, ...: the stretch of the sample that one engine generated"),
    Column("group_id", _STRING, "", "the samples of one prompt", True),
    Column("worker_id", _STRING, "", "the engine that generated the segment"),
    Column("submitted_ns", _LONG, "ns", "when the segment was given to the engine", True),
    Column("started_ns", _LONG, "ns", "when it was first scheduled", True),
    Column("finished_ns", _LONG, "ns", "when its last token was sampled"),
    Column("prompt_tokens", _INT, "tokens", "context at the start of the segment"),
    Column("output_tokens", _INT, "tokens", "tokens sampled in this segment"),
    Column(
        "versions",
        pa.list_(pa.field("element", VERSION_RUN, nullable=False)),
        "tokens",
        "half-open runs [start, end) of one policy version over this segment's output tokens, in order, no gaps",
    ),
    Column("version_source", _STRING, "", "engine | segment | time_join | admission: where `versions` comes from"),
    Column("torn_tokens", _INT, "tokens", "tokens sampled while weights were swapped without a pause", True),
    Column("finish_reason", _STRING, "", "stop | length | abort | error | unfinished (length censored)", True),
    Column("preemptions", _INT, "count", "times the segment was preempted", True),
    Column("cached_tokens", _INT, "tokens", "prompt tokens found in the prefix cache", True),
    Column("env_wait_ns", _LONG, "ns", "time inside the segment spent outside the engine", True),
)

DELIVERIES: Final = (
    Column("sample_id", _STRING, "", "the sample that left the queue"),
    Column("worker_id", _STRING, "", "who took it"),
    Column("queued_ns", _LONG, "ns", "when it entered the queue", True),
    Column("taken_ns", _LONG, "ns", "when it left the queue"),
    Column("outcome", _STRING, "", "trained | dropped_stale | filtered | abandoned"),
    Column("step", _LONG, "", "the optimizer step that trained on it", True),
    Column("consumer_version", _LONG, "", "last version published when that gradient step started", True),
    Column("reward", _REAL, "1", "its reward", True),
    Column("advantage", _REAL, "1", "its advantage", True),
)

ENGINE_STEPS: Final = (
    Column("worker_id", _STRING, "", "the engine"),
    Column("start_ns", _LONG, "ns", "start of the forward pass, or of a window of passes with one running count"),
    Column("end_ns", _LONG, "ns", "end of the row, at most 1 s after its start"),
    Column("forward_passes", _INT, "count", "forward passes in the row; NULL where a sampled row cannot tell", True),
    Column(
        "busy_ns",
        _LONG,
        "ns",
        "time inside forward passes, the rest of the row is between passes; NULL where a sampled row cannot tell",
        True,
    ),
    Column("running", _INT, "requests", "requests in the batch"),
    Column("waiting", _INT, "requests", "requests queued in the engine"),
    Column("decode_tokens", _INT, "tokens", "tokens produced"),
    Column("prefill_tokens", _INT, "tokens", "prompt tokens processed"),
    Column("kv_used_tokens", _LONG, "tokens", "tokens resident in the KV cache", True),
    Column("preemptions", _INT, "count", "preemptions in this row", True),
    Column(
        "source",
        _STRING,
        "",
        "measured | sampled: by a hook at each pass, or read from the engine's metrics now and then; NULL is measured",
        True,
    ),
)

TRAIN_STEPS: Final = (
    Column("worker_id", _STRING, "", "the trainer worker; ranks report their own share"),
    Column("step", _LONG, "", "the optimizer step"),
    Column("start_ns", _LONG, "ns", "start of compute (waits are activities)"),
    Column("end_ns", _LONG, "ns", "end of compute"),
    Column("version_in", _LONG, "", "last version published at the start"),
    Column("version_out", _LONG, "", "version published from this step, or version_in when none was"),
    Column("samples", _LONG, "samples", "samples processed by this worker"),
    Column("tokens", _LONG, "tokens", "prompt and response tokens processed by this worker"),
    Column("loss", _REAL, "1", "loss", True),
    Column("grad_norm", _REAL, "1", "gradient norm", True),
    Column("entropy", _REAL, "nat", "mean token entropy", True),
    Column("reward_mean", _REAL, "1", "mean reward of the batch", True),
    Column("clip_ratio", _REAL, "1", "share of tokens whose ratio was clipped, 0..1", True),
    Column(
        "importance",
        pa.list_(pa.field("element", IMPORTANCE_MOMENT, nullable=False)),
        "1",
        "token count, sum and sum of squares of the importance ratio w by token staleness",
        True,
    ),
    Column(
        "fresh_tokens",
        _LONG,
        "tokens",
        "response tokens that the step's very weights, published as version_in, sampled on a context of their own",
        True,
    ),
    Column("fresh_sum_w", _REAL, "1", "sum of their importance ratio w, taken before the step changes weights", True),
    Column("fresh_sum_w2", _REAL, "1", "sum of its square", True),
)

WEIGHT_UPDATES: Final = (
    Column("worker_id", _STRING, "", "who published, moved or applied the weights"),
    Column("version", _LONG, "", "the policy version"),
    Column("label", _STRING, "", "what the framework calls the version", True),
    Column("phase", _STRING, "", "publish | transfer | apply"),
    Column("start_ns", _LONG, "ns", "start"),
    Column("end_ns", _LONG, "ns", "end"),
    Column("bytes", _LONG, "bytes", "bytes moved", True),
    Column("paused", pa.bool_(), "", "whether generation stopped meanwhile", True),
    Column("kv", _STRING, "", "kept | recomputed: what became of the KV cache", True),
)

ACTIVITY_SPANS: Final = (
    Column("worker_id", _STRING, "", "the worker"),
    Column("activity", _STRING, "", " | ".join(ACTIVITIES)),
    Column("reason", _STRING, "", "for wait: " + " | ".join(WAIT_REASONS), True),
    Column("start_ns", _LONG, "ns", "start"),
    Column("end_ns", _LONG, "ns", "end"),
)

QUEUE_DEPTHS: Final = (
    Column("queue", _STRING, "", "the queue's name"),
    Column("worker_id", _STRING, "", "who looked"),
    Column("time_ns", _LONG, "ns", "when"),
    Column("depth", _LONG, "samples", "samples in the queue"),
    Column("capacity", _LONG, "samples", "most samples it can hold", True),
)

GPU_SAMPLES: Final = (
    Column("worker_id", _STRING, "", "the worker that owns the GPU"),
    Column("gpu_id", _STRING, "", "UUID or index of the GPU"),
    Column("time_ns", _LONG, "ns", "end of the period that the reading covers"),
    Column("sm_active_ratio", _REAL, "1", "share of the period and of the SMs with a warp resident, 0..1", True),
    Column("busy_ratio", _REAL, "1", "share of the period in which any kernel ran, 0..1", True),
    Column("memory_used_bytes", _LONG, "bytes", "device memory in use", True),
    Column("power_w", _REAL, "W", "power draw", True),
    Column("source", _STRING, "", "gpm | nvml | dcgm"),
)

SPANS: Final = (
    Column("trace_id", _STRING, "", "32 hex digits"),
    Column("span_id", _STRING, "", "16 hex digits"),
    Column("parent_span_id", _STRING, "", "16 hex digits", True),
    Column("name", _STRING, "", "the span's name"),
    Column("kind", _STRING, "", "INTERNAL | SERVER | CLIENT | PRODUCER | CONSUMER"),
    Column("start_ns", _LONG, "ns", "start"),
    Column("end_ns", _LONG, "ns", "end"),
    Column("status", _STRING, "", "UNSET | OK | ERROR"),
    Column("worker_id", _STRING, "", "the worker whose processor saw it"),
    Column("attributes", _STRING, "", "the span's attributes as JSON text"),
)

TABLES: Final[dict[str, tuple[Column, ...]]] = {
    "samples": SAMPLES,
    "deliveries": DELIVERIES,
    "engine_steps": ENGINE_STEPS,
    "train_steps": TRAIN_STEPS,
    "weight_updates": WEIGHT_UPDATES,
    "activities": ACTIVITY_SPANS,
    "queue_depths": QUEUE_DEPTHS,
    "gpu_samples": GPU_SAMPLES,
    "spans": SPANS,
}


def arrow_schema(table: str) -> pa.Schema:
    """The Arrow schema of a table; each field's metadata holds `unit` and `meaning`, the schema's the format version.

    Raises KeyError for a table that the format does not have.
    """
    fields = [
        pa.field(column.name, column.type, column.nullable, {"unit": column.unit, "meaning": column.meaning})
        for column in TABLES[table]
    ]
    return pa.schema(fields, {"rlscope.format": FORMAT_NAME, "rlscope.version": str(FORMAT_VERSION)})
