"""Causes of lost throughput: one name for each, in the verdict, the ranking, the actions, the gap and the layouts.

The value of each is its name in JSON. Every place that names causes states which of them it can have.
"""

from enum import StrEnum
from typing import Literal, TypeAlias


class Cause(StrEnum):
    """Cause of lost throughput, or the finding that no single one stands out."""

    SAMPLERS = "samplers"
    """Sampling is too slow: trainers wait for samples."""
    TRAINERS = "trainers"
    """Training is too slow: samplers wait, or generate samples that are dropped."""
    STALENESS_CAP = "staleness_cap"
    """A staleness cap delays, drops or holds back samples. In a verdict, any limit on samples in flight."""
    WEIGHT_UPDATES = "weight_updates"
    """Trainers publish weights, and engines pause to apply them."""
    ENVIRONMENT = "environment"
    """Samples wait for tools, simulators or rewards."""
    LOCKSTEP = "lockstep"
    """Sampling and training alternate: each side waits while the other works."""
    CHECKPOINTS = "checkpoints"
    """Trainers save or evaluate."""

    IN_FLIGHT_LIMIT = "in_flight_limit"
    """Limit on running samples, or on running and queued ones."""
    RUNNING_LIMIT = "running_limit"
    """Engines may run fewer requests than would be best."""
    WHOLE_GPUS = "whole_gpus"
    """No split into whole engines and trainer replicas keeps both sides busy; no layout of these GPUs changes that."""
    LAYOUT_IMBALANCE = "layout_imbalance"
    """Another split of whole GPUs would be faster."""
    SLOW_ENGINES = "slow_engines"
    """Some engines are slower than the others."""
    KV_CACHE = "kv_cache"
    """The KV cache holds fewer requests than the engines may run."""
    BETWEEN_STEPS = "between_steps"
    """Trainers neither train nor wait for samples: checkpoints, evaluation, and time in no recorded phase."""
    TAIL = "tail"
    """Waits for the longest sample: of a step in a synchronous run, else of a group if samples in flight are capped."""
    UNDERFILLED_BATCHES = "underfilled_batches"
    """Fewer requests ran than were allowed."""

    BALANCED = "balanced"
    """No cause costs enough to be named."""
    UNKNOWN = "unknown"
    """Too little data for a verdict."""
    UNEXPLAINED = "unexplained"
    """The model's prediction minus the achieved rate; below 0 if the run beat the prediction."""


LossCause: TypeAlias = Literal[
    Cause.SAMPLERS,
    Cause.TRAINERS,
    Cause.STALENESS_CAP,
    Cause.WEIGHT_UPDATES,
    Cause.ENVIRONMENT,
    Cause.LOCKSTEP,
    Cause.CHECKPOINTS,
]
"""Causes that the ledger measures and that an action addresses: a side too slow, a limit, or a cost."""
Bottleneck: TypeAlias = Literal[LossCause, Cause.BALANCED, Cause.UNKNOWN]
"""Verdicts on a run."""
