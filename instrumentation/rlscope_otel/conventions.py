"""Names of the spans and attributes that become rows of the trace tables.

A span with another name is ignored, and one without a required attribute is counted as dropped. `schema.py` says what
the columns mean, and `spans.py` makes the rows.
"""

from typing import Final, NamedTuple

from rlscope_otel import schema

SCOPE_NAME: Final = "rlscope_otel"

TRAIN_STEP: Final = "rlscope.train_step"
WEIGHT_SPANS: Final = {phase: f"rlscope.weights.{phase}" for phase in schema.UPDATE_PHASES}
"""Names of the spans of weight updates, by phase."""
ACTIVITY_SPANS: Final = {activity: f"rlscope.{activity}" for activity in schema.ACTIVITIES}
"""Names of the spans of a worker's activities, by activity."""


class Attribute(NamedTuple):
    """One attribute of a span: its key, its type, and whether the span is unusable without it."""

    key: str
    type: type[str] | type[int] | type[float] | type[bool]
    required: bool = False


WAIT_REASON: Final = Attribute("rlscope.wait.reason", str)

TRAIN: Final = {
    "step": Attribute("rlscope.train.step", int, required=True),
    "version_in": Attribute("rlscope.train.version_in", int, required=True),
    "version_out": Attribute("rlscope.train.version_out", int),
    "samples": Attribute("rlscope.train.samples", int),
    "tokens": Attribute("rlscope.train.tokens", int),
    "loss": Attribute("rlscope.train.loss", float),
    "grad_norm": Attribute("rlscope.train.grad_norm", float),
    "entropy": Attribute("rlscope.train.entropy", float),
    "reward_mean": Attribute("rlscope.train.reward_mean", float),
    "clip_ratio": Attribute("rlscope.train.clip_ratio", float),
    "truncated_ratio": Attribute("rlscope.train.truncated_ratio", float),
    "fresh_tokens": Attribute("rlscope.train.fresh.tokens", int),
    "fresh_sum_w": Attribute("rlscope.train.fresh.sum_w", float),
    "fresh_sum_w2": Attribute("rlscope.train.fresh.sum_w2", float),
}
"""Attributes of a train step, by column of `train_steps`."""

IMPORTANCE: Final = tuple(f"rlscope.train.importance.{each}" for each in ("staleness", "tokens", "sum_w", "sum_w2"))
"""Keys of a train step whose values are lists of one length: they are the fields of the column `importance`."""

WEIGHTS: Final = {
    "version": Attribute("rlscope.weights.version", int, required=True),
    "label": Attribute("rlscope.weights.label", str),
    "bytes": Attribute("rlscope.weights.size", int),
    "paused": Attribute("rlscope.weights.paused", bool),
    "kv": Attribute("rlscope.weights.kv", str),
}
"""Attributes of a phase of a weight update, by column of `weight_updates`."""
