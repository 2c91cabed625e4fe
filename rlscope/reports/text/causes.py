"""The causes that a verdict names, in words. Loads nothing of the model: `rlscope watch` shows them too."""

from collections.abc import Mapping
from typing import Final, NamedTuple

from rlscope import format as fmt
from rlscope.analysis.result import Loss, Verdict
from rlscope.model.causes import Bottleneck, Cause


class _Words(NamedTuple):
    headline: str
    """{share}: the lost share of that side's GPU time. {cause}: what it was lost to."""
    plain_headline: str
    """The headline if hardly any GPU time was recorded as lost: a side can be slow without anybody waiting for it."""
    cause: str
    """The cause of the loss as a noun phrase."""
    side: str
    """The GPU time that the loss is a share of."""


NAMES: Final[Mapping[Cause, str]] = {
    Cause.SAMPLERS: "samplers",
    Cause.TRAINERS: "trainers",
    Cause.STALENESS_CAP: "staleness cap",
    Cause.WEIGHT_UPDATES: "weight updates",
    Cause.ENVIRONMENT: "environment",
    Cause.LOCKSTEP: "synchronous steps",
    Cause.CHECKPOINTS: "checkpoints",
    Cause.IN_FLIGHT_LIMIT: "cap on samples in flight",
    Cause.RUNNING_LIMIT: "limit on running requests",
    Cause.WHOLE_GPUS: "indivisible GPUs",
    Cause.LAYOUT_IMBALANCE: "split of the GPUs",
    Cause.SLOW_ENGINES: "slow engines",
    Cause.KV_CACHE: "KV cache",
    Cause.BETWEEN_STEPS: "time between steps",
    Cause.TAIL: "longest samples",
    Cause.UNDERFILLED_BATCHES: "batches not filled",
    Cause.BALANCED: "nothing",
    Cause.UNEXPLAINED: "not explained",
}
"""Names of the causes of a verdict and of the gap, and of the limits of a layout."""
# Smaller losses make no headline.
_LEAST_HEADLINE_RATIO: Final = 0.05
# Of a loss: less of it is not named as a part.
_LEAST_PART_RATIO: Final = 0.02

_WORDS: Final[Mapping[Bottleneck, _Words]] = {
    Cause.SAMPLERS: _Words(
        headline="Trainers wait for samples {share} of the time",
        plain_headline="Sampling limits throughput",
        cause="waits for samples",
        side="trainer GPU time",
    ),
    Cause.TRAINERS: _Words(
        headline="Trainers cannot keep up: samplers lose {share} of their GPU time to {cause}",
        plain_headline="Training limits throughput",
        cause="sampler waits",
        side="sampler GPU time",
    ),
    Cause.LOCKSTEP: _Words(
        headline="Trainers and samplers take turns, so GPUs wait {share} of the time",
        plain_headline="Sampling and training take turns",
        cause="trainers and samplers waiting for each other",
        side="all GPU time",
    ),
    Cause.STALENESS_CAP: _Words(
        headline="Waiting at the staleness cap takes {share} of all GPU time",
        plain_headline="A limit on samples in flight limits throughput",
        cause="the staleness cap",
        side="all GPU time",
    ),
    Cause.WEIGHT_UPDATES: _Words(
        headline="Weight updates take {share} of all GPU time",
        plain_headline="Weight updates are the largest loss",
        cause="weight updates",
        side="all GPU time",
    ),
    Cause.ENVIRONMENT: _Words(
        headline="Waiting for the environment takes {share} of all GPU time",
        plain_headline="Waiting for the environment is the largest loss",
        cause="waits for the environment",
        side="all GPU time",
    ),
    Cause.CHECKPOINTS: _Words(
        headline="Checkpoints and evaluation take {share} of the trainers' time",
        plain_headline="Checkpoints and evaluation are the largest loss",
        cause="checkpoints and evaluation",
        side="trainer GPU time",
    ),
    Cause.BALANCED: _Words(
        headline="No change is predicted to gain 5%",
        plain_headline="Neither side loses more than 10% of its time",
        cause="no bottleneck",
        side="GPU time",
    ),
    Cause.UNKNOWN: _Words(
        headline="Not enough data for a verdict",
        plain_headline="Not enough data for a verdict",
        cause="unknown causes",
        side="GPU time",
    ),
}


_SPENT: Final[Mapping[Bottleneck, str]] = {
    Cause.SAMPLERS: "trainers spent {gpu_time} waiting for samples",
    Cause.LOCKSTEP: "trainers and samplers spent {gpu_time} waiting for each other",
    Cause.STALENESS_CAP: "trainers and samplers spent {gpu_time} waiting at the staleness cap",
    Cause.WEIGHT_UPDATES: "weight updates took {gpu_time}",
    Cause.ENVIRONMENT: "GPUs spent {gpu_time} waiting for the environment",
    Cause.CHECKPOINTS: "checkpoints and evaluation took {gpu_time}",
}
OPEN_LABEL: Final = "Trainers wait for samples"
"""Title of the verdict if a log does not show what delays the samples."""


def verdict_label(bottleneck: Bottleneck) -> str:
    """The verdict as a title."""
    if bottleneck in (Cause.BALANCED, Cause.UNKNOWN):
        return "Balanced" if bottleneck == Cause.BALANCED else "No verdict"
    return f"Bottleneck: {NAMES[bottleneck]}"


def headline(verdict: Verdict, *, is_ranked: bool) -> str:
    """The verdict as one short sentence; is_ranked: whether it was read from the model's ranking of causes."""
    words = _WORDS[verdict.bottleneck]
    loss = next((loss for loss in verdict.losses if loss.cause == verdict.bottleneck), None)
    if verdict.bottleneck == Cause.BALANCED:
        return words.headline if is_ranked else words.plain_headline
    if loss is None or loss.side_share_ratio < _LEAST_HEADLINE_RATIO:
        return words.plain_headline
    cause = loss_words(loss).removeprefix("sampler ")
    return words.headline.format(share=fmt.percent(loss.side_share_ratio), cause=cause)


def loss_words(loss: Loss) -> str:
    """The loss as a noun phrase: samplers lose time to waits, to dropped samples, or to both."""
    parts = _sampler_losses(loss)
    return " and ".join(parts) if parts else _WORDS[loss.cause].cause


def share_words(loss: Loss) -> str:
    """The lost share of the GPU time of the side that lost it, such as 62.3% of trainer GPU time."""
    return f"{fmt.percent(loss.side_share_ratio)} of {side_words(loss.cause)}"


def spent_words(loss: Loss, beside: Bottleneck | None = None) -> str:
    """The loss as a clause, with its GPU time and share. beside: the loss that was named before."""
    gpu_time, share = fmt.gpu_time(loss.gpu_s), share_words(loss)
    if loss.cause in _SPENT:
        return f"{_SPENT[loss.cause].format(gpu_time=gpu_time)} ({share})"
    parts = _sampler_losses(loss)
    if not parts:
        another = "" if beside in (None, loss.cause) else "another "
        return f"samplers were idle for {another}{gpu_time} ({share})"
    purpose = "on dropped samples" if len(parts) == 1 else "idle or on dropped samples"
    return f"samplers spent {gpu_time} {purpose} ({share})"


def _sampler_losses(loss: Loss) -> tuple[str, ...]:
    """Return the parts of a sampler loss, if dropped samples are among them; empty for any other loss."""
    dropped_gpu_s, least = loss.dropped_gpu_s or 0.0, _LEAST_PART_RATIO * loss.gpu_s
    if dropped_gpu_s <= least:
        return ()
    return ("dropped samples",) if loss.gpu_s - dropped_gpu_s <= least else ("sampler waits", "dropped samples")


def side_words(cause: Bottleneck) -> str:
    """The GPU time that the loss is a share of."""
    return _WORDS[cause].side
