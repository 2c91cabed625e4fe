"""Attributes of the spans that become rows of the trace tables.

`schema.py` says what the columns mean, and `spans.py`, which has the names of the spans, makes the rows.
"""

from typing import Final, NamedTuple

SCOPE_NAME: Final = "rlscope_otel"


class Attribute(NamedTuple):
    """One attribute of a span."""

    key: str
    type: type[str] | type[int] | type[float] | type[bool]


WAIT_REASON: Final = Attribute("rlscope.wait.reason", str)

TRAIN: Final = {
    "step": Attribute("rlscope.train.step", int),
    "version_in": Attribute("rlscope.train.version_in", int),
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
    "version": Attribute("rlscope.weights.version", int),
    "label": Attribute("rlscope.weights.label", str),
    "bytes": Attribute("rlscope.weights.size", int),
    "paused": Attribute("rlscope.weights.paused", bool),
    "kv": Attribute("rlscope.weights.kv", str),
}
"""Attributes of a phase of a weight update, by column of `weight_updates`."""
