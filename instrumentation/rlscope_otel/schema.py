"""The trace format: every table that capture writes and analysis reads, with a unit and a description per column.

This file is the contract: the recorder builds its Arrow batches from it, the store its typed empty tables, and
`docs/trace-format.md` is generated from it. `closing.py` has the encodings of closed files.

A trace holds facts only. Times are BIGINT nanoseconds since the UTC epoch. No data is NULL, never 0.
"""

import re
from functools import cache
from typing import Final, NamedTuple

import pyarrow as pa

FORMAT_NAME: Final = "rlscope-trace"
FORMAT_VERSION: Final = 1
WORKER_ID_PATTERN: Final = r"[A-Za-z0-9_.-]{1,128}"

ROLES: Final = ("sampler", "trainer", "colocated", "auxiliary", "controller")
"""An auxiliary worker runs a model that is not trained: a judge, a reward, reference or critic model."""
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
UPDATE_PARTS: Final = ("drain", "gather", "convert", "install", "resume")
UPDATE_PHASES: Final = ("publish", "transfer", "apply", *UPDATE_PARTS)


class Column(NamedTuple):
    """One stored column: name, Arrow type, unit ("" for names), meaning, and whether it may be NULL."""

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
    Column("sample_id", _STRING, "", "id of the sample, unique in the run"),
    Column("segment", _INT, "", "0, 1, ...: index of the part of the sample that one engine generated"),
    Column("group_id", _STRING, "", "shared by all samples of one prompt", True),
    Column("worker_id", _STRING, "", "the engine that generated the segment"),
    Column("submitted_ns", _LONG, "ns", "when the segment was submitted to the engine", True),
    Column("started_ns", _LONG, "ns", "when it was first scheduled", True),
    Column("finished_ns", _LONG, "ns", "when its last token was sampled"),
    Column("prompt_tokens", _INT, "tokens", "length of the context at the start of the segment"),
    Column("output_tokens", _INT, "tokens", "tokens sampled in this segment"),
    Column(
        "versions",
        pa.list_(pa.field("element", VERSION_RUN, nullable=False)),
        "tokens",
        "policy version of each range [start, end) of this segment's output tokens, in order and without gaps",
    ),
    Column("version_source", _STRING, "", "engine | segment | time_join | admission: how `versions` was determined"),
    Column("torn_tokens", _INT, "tokens", "tokens sampled while weights were loaded without pausing generation", True),
    Column(
        "finish_reason",
        _STRING,
        "",
        "stop | length | abort | error | unfinished (running when recording stopped)",
        True,
    ),
    Column("preemptions", _INT, "count", "times the segment was preempted", True),
    Column("cached_tokens", _INT, "tokens", "prompt tokens served from the prefix cache", True),
    Column("env_wait_ns", _LONG, "ns", "time in the segment spent outside the engine, in a tool or environment", True),
)

DELIVERIES: Final = (
    Column("sample_id", _STRING, "", "the sample that left the queue"),
    Column("worker_id", _STRING, "", "worker that took it from the queue"),
    Column("queued_ns", _LONG, "ns", "when it entered the queue", True),
    Column("taken_ns", _LONG, "ns", "when it left the queue"),
    Column("outcome", _STRING, "", "trained | dropped_stale | filtered | abandoned"),
    Column("step", _LONG, "", "optimizer step that trained on it", True),
    Column("consumer_version", _LONG, "", "latest version published when that optimizer step started", True),
    Column("reward", _REAL, "1", "reward", True),
)

ENGINE_STEPS: Final = (
    Column("worker_id", _STRING, "", "the engine"),
    Column(
        "start_ns",
        _LONG,
        "ns",
        "start of the forward pass, or of a window of passes with a constant number of running requests",
    ),
    Column("end_ns", _LONG, "ns", "end of the pass or window, at most 1 s after the start unless `source` is log"),
    Column("forward_passes", _INT, "count", "forward passes in the row; NULL if unknown in a sampled row", True),
    Column(
        "busy_ns",
        _LONG,
        "ns",
        "time inside forward passes; the rest of the row is between passes; NULL if unknown in a sampled row",
        True,
    ),
    Column("running", _INT, "requests", "requests in the batch"),
    Column("waiting", _INT, "requests", "requests waiting in the engine"),
    Column("decode_tokens", _INT, "tokens", "output tokens produced"),
    Column("prefill_tokens", _INT, "tokens", "prompt tokens processed"),
    Column("kv_used_tokens", _LONG, "tokens", "tokens in the KV cache", True),
    Column("preemptions", _INT, "count", "preemptions in this row", True),
    Column(
        "source",
        _STRING,
        "",
        "measured (by a hook, at each pass) | sampled (polled from the engine's metrics) | log (a line of the engine's "
        "log, which sums up a window); NULL means measured",
        True,
    ),
)

TRAIN_STEPS: Final = (
    Column("worker_id", _STRING, "", "the trainer worker; each rank reports its own share"),
    Column("step", _LONG, "", "the optimizer step"),
    Column("start_ns", _LONG, "ns", "start of compute; waits are in `activities`"),
    Column("end_ns", _LONG, "ns", "end of compute"),
    Column("version_in", _LONG, "", "latest version published when the step started"),
    Column("version_out", _LONG, "", "version published after this step; version_in if none was"),
    Column("samples", _LONG, "samples", "samples processed by this worker; NULL if unknown", True),
    Column("tokens", _LONG, "tokens", "prompt and response tokens processed by this worker; NULL if unknown", True),
    Column("loss", _REAL, "1", "loss", True),
    Column("grad_norm", _REAL, "1", "gradient norm", True),
    Column("entropy", _REAL, "nat", "mean token entropy", True),
    Column("reward_mean", _REAL, "1", "mean reward of the batch", True),
    Column("clip_ratio", _REAL, "1", "share of tokens whose importance ratio was clipped, 0..1", True),
    Column("truncated_ratio", _REAL, "1", "share of the samples that were cut at the length limit, 0..1", True),
    Column(
        "importance",
        pa.list_(pa.field("element", IMPORTANCE_MOMENT, nullable=False)),
        "1",
        "by token staleness: number of tokens, sum and sum of squares of their importance ratio w",
        True,
    ),
    Column(
        "fresh_tokens",
        _LONG,
        "tokens",
        "response tokens that the weights being trained (version_in) sampled, on a context that they also computed",
        True,
    ),
    Column(
        "fresh_sum_w", _REAL, "1", "sum of the importance ratio w of the fresh tokens, before the weights change", True
    ),
    Column("fresh_sum_w2", _REAL, "1", "sum of the squared importance ratio of the fresh tokens", True),
)

WEIGHT_UPDATES: Final = (
    Column("worker_id", _STRING, "", "worker that published, transferred or applied the weights"),
    Column("version", _LONG, "", "the policy version"),
    Column("label", _STRING, "", "the framework's own name for the version", True),
    Column("phase", _STRING, "", " | ".join(UPDATE_PHASES)),
    Column("start_ns", _LONG, "ns", "start"),
    Column("end_ns", _LONG, "ns", "end"),
    Column("bytes", _LONG, "bytes", "bytes transferred", True),
    Column("paused", pa.bool_(), "", "whether generation was paused during the update", True),
    Column("kv", _STRING, "", "kept | recomputed: what happened to the KV cache", True),
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
    Column("worker_id", _STRING, "", "worker that read the depth"),
    Column("time_ns", _LONG, "ns", "when it was read"),
    Column("depth", _LONG, "samples", "samples in the queue"),
    Column("capacity", _LONG, "samples", "maximum number of samples", True),
)

GPU_SAMPLES: Final = (
    Column("worker_id", _STRING, "", "the worker that owns the GPU"),
    Column("gpu_id", _STRING, "", "UUID or index of the GPU"),
    Column("time_ns", _LONG, "ns", "end of the period that the reading covers"),
    Column("sm_active_ratio", _REAL, "1", "mean share of the SMs with a resident warp in the period, 0..1", True),
    Column("busy_ratio", _REAL, "1", "share of the period in which at least one kernel ran, 0..1", True),
    Column("source", _STRING, "", "gpm | nvml | dcgm"),
)

REPORTED: Final = (
    Column("worker_id", _STRING, "", "the worker whose framework reports the value"),
    Column("time_ns", _LONG, "ns", "when it was reported"),
    Column("step", _LONG, "", "the optimizer step that it was reported for", True),
    Column("name", _STRING, "", "the framework's own name for the value"),
    Column("value", _REAL, "", "the value, in the framework's own unit; nothing is computed from it", True),
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
    "reported": REPORTED,
}

STAMP_KEYS: Final = ("rlscope.run", "rlscope.table", "rlscope.worker", "rlscope.sequence")
"""Metadata keys of a file or journal: its run, table and worker, and its number among those of a table, from 1."""

FIRST_ROW_KEY: Final = "rlscope.first_row"
"""Metadata key of a file that replaced a journal: the number of its first row, from 0, among all of its worker."""

_NUMBERED: Final = re.compile(r"(?P<worker_id>.+)-(?P<number>[0-9]{1,19})", re.DOTALL)


class FileNumber(NamedTuple):
    """Contents of a file name, `WORKER-NUMBER` before the suffix: its worker, and its number."""

    worker_id: str
    number: int

    @property
    def stem(self) -> str:
        """The name without its suffix; the number has at least six digits."""
        return f"{self.worker_id}-{self.number:06d}"

    @classmethod
    def of(cls, stem: str) -> "FileNumber":
        """Parse a file name without its suffix. One without a number is a worker's file number 0."""
        found = _NUMBERED.fullmatch(stem)
        return cls(stem, 0) if found is None else cls(found["worker_id"], int(found["number"]))


TIMES: Final[dict[str, tuple[str, str]]] = {
    "samples": ("finished_ns", "finished_ns"),
    "deliveries": ("taken_ns", "taken_ns"),
    "queue_depths": ("time_ns", "time_ns"),
    "gpu_samples": ("time_ns", "time_ns"),
    "reported": ("time_ns", "time_ns"),
    **dict.fromkeys(("engine_steps", "train_steps", "weight_updates", "activities"), ("start_ns", "end_ns")),
}
"""Columns with the first and last time of a row, by table; neither may be NULL."""

KEYS: Final[dict[str, tuple[str, ...]]] = {
    # A restarted worker may reuse its ids.
    "samples": ("sample_id", "segment", "finished_ns"),
    "deliveries": ("sample_id", "worker_id", "taken_ns", "outcome", "step"),
    "engine_steps": ("worker_id", "start_ns", "end_ns"),
    "train_steps": ("worker_id", "step", "start_ns"),
    "weight_updates": ("worker_id", "version", "phase", "start_ns", "end_ns"),
    "activities": ("worker_id", "activity", "reason", "start_ns", "end_ns"),
    "queue_depths": ("queue", "worker_id", "time_ns", "depth"),
    "gpu_samples": ("worker_id", "gpu_id", "time_ns", "source"),
    "reported": ("worker_id", "time_ns", "step", "name"),
}
"""Key columns by table. Rows with the same key were stored twice and count once."""


@cache
def arrow_schema(table: str) -> pa.Schema:
    """Return the Arrow schema of a table; field metadata holds `unit` and `meaning`, table metadata the format version.

    Raises KeyError for an unknown table.
    """
    fields = [
        pa.field(column.name, column.type, column.nullable, {"unit": column.unit, "meaning": column.meaning})
        for column in TABLES[table]
    ]
    return pa.schema(fields, {"rlscope.format": FORMAT_NAME, "rlscope.version": str(FORMAT_VERSION)})
