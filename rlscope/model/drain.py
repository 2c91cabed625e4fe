"""How long an engine takes to generate a fixed number of responses that all are there at the start: a drain.

Requests that start together all have the same age, so batch and resident tokens follow from the law of lengths alone.
What does not fit into the batch at once waits, and starts as others finish. The number of running requests is its mean
at every pass, so the luck of one engine against another is not covered; with few requests it matters.
"""

from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from rlscope.model.lengths import LengthLaw
from rlscope.model.system import DecodeCurve, Reals

Horizon = Literal["expected_longest", "longest_possible"]
"""Passes that are counted: as many as the longest of a step's samples needs on average, or as the longest possible."""

_SLICES: Final = 256
"""Slices of the longest length by which a drain in waves moves on: its time is then within 1 %."""


@dataclass(frozen=True, slots=True)
class Batch:
    """What one engine has to generate."""

    samples: float
    """Responses, mean over the engines."""
    running_limit: float
    """Most that run at once."""
    step_samples: float
    """Responses of the whole step: the slowest of them ends it."""
    prompt_tokens: float


def drain_s(curve: DecodeCurve, lengths: LengthLaw, batch: Batch, horizon: Horizon = "expected_longest") -> float:
    """Seconds from the first pass to the last, prefill left out.

    Sum over passes k of t(n S(k - 1)) with n S(k - 1) (P + k - 1) resident tokens (the synchronous step of Applied
    Compute's talk, 2025, and the KV term, own). expected_longest weighs pass k with the probability that a sample
    of the step still runs. In waves, the requests that start are found slice by slice from those that finish.
    """
    if batch.samples <= batch.running_limit:
        passes = np.arange(np.ceil(lengths.max_tokens))
        slice_tokens, running = 1.0, batch.samples * lengths.survival(passes)
        resident = running * (batch.prompt_tokens + passes)
    else:
        slice_tokens = max(lengths.max_tokens / _SLICES, 1.0)
        running, resident = _waves(lengths, batch, slice_tokens)
    if horizon == "expected_longest":
        needed = 1.0 - (1.0 - np.minimum(running / batch.samples, 1.0)) ** batch.step_samples
        # An engine that still runs has a request: the mean over all engines, some of them done, may be below one.
        alone = np.maximum(1.0 / np.maximum(running, 1e-300), 1.0)
        running, resident = running * alone, resident * alone
    else:
        needed = np.ones_like(running)
    seconds = curve.pass_s(running) + curve.kv_s_per_token * resident
    return float((needed * seconds).sum()) * slice_tokens


def largest_batch(lengths: LengthLaw, prompt_tokens: float, capacity_tokens: float) -> float:
    """Requests that can start together without overflowing the KV cache at any age, on average."""
    ages = lengths.support
    alive = np.append(1.0, lengths.survival(ages)[:-1])
    return capacity_tokens / float((alive * (prompt_tokens + ages)).max())


def _waves(lengths: LengthLaw, batch: Batch, slice_tokens: float) -> tuple[Reals, Reals]:
    """Running requests and their resident tokens, slice by slice: as many start as keep the batch full.

    A request that starts with a slice runs for a share of every later one, the mean of S over it; so tokens are
    conserved, whatever the slices.
    """
    edges = np.arange(np.ceil(lengths.max_tokens / slice_tokens) + 1.0) * slice_tokens
    alive = -np.diff(lengths.excess_tokens(edges)) / slice_tokens
    most_slices = int(batch.samples / batch.running_limit * lengths.mean_tokens / slice_tokens) + 2 * alive.size
    starts = np.zeros(most_slices)
    waiting, now = batch.samples, 0
    while waiting > 0.0:
        window = min(now, alive.size - 1)
        running = float((starts[now - window : now][::-1] * alive[1 : window + 1]).sum())
        starts[now] = min(max(batch.running_limit - running, 0.0) / alive[0], waiting)
        waiting, now = waiting - starts[now], now + 1
    ages = batch.prompt_tokens + (edges[:-1] + edges[1:]) / 2.0
    running = np.convolve(starts[:now], alive).astype(np.float64)
    return running, np.convolve(starts[:now], alive * ages).astype(np.float64)
