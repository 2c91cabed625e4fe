"""The causes that a verdict names, in words. Loads nothing of the model: `rlscope watch` shows them too."""

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from rlscope import format as fmt
from rlscope.analysis.bottleneck import SAVING
from rlscope.analysis.result import Loss, Verdict
from rlscope.model.causes import Bottleneck, Cause


class CauseWords(NamedTuple):
    """Phrases about one bottleneck."""

    headline: str
    """{share}: the lost share of that side's GPU time. {cause}: what it was lost to."""
    plain_headline: str
    """The headline if hardly any GPU time was recorded as lost: a side can be slow without anybody waiting for it."""
    cause: str
    """The cause of the loss as a noun phrase."""
    side: str
    """The GPU time that the loss is a share of."""
    next_step: str
    """The next step if there is no ranking of actions."""
    removed: str = ""
    """The change that the model makes to learn what the cause costs; of limits, it depends on those of the run."""
    spent: str = ""
    """The loss as a clause; empty if it depends on what samplers lost."""


_SAVING: Final = "checkpoints and evaluation"
_SAVING_NEXT: Final = "Save and evaluate less often, save in the background, or evaluate on GPUs that do not train."
_ONLY: Final[Mapping[str, tuple[str, str]]] = {
    "checkpoint": ("checkpoints", "Save less often, or save in the background."),
    "eval": ("evaluation", "Evaluate less often, or evaluate on GPUs that do not train."),
}
"""By state: the name and the next step if trainers only saved or only evaluated."""
NAMES: Final[Mapping[Cause, str]] = {
    Cause.SAMPLERS: "samplers",
    Cause.TRAINERS: "trainers",
    Cause.STALENESS_CAP: "staleness cap",
    Cause.WEIGHT_UPDATES: "weight updates",
    Cause.ENVIRONMENT: "environment",
    Cause.LOCKSTEP: "synchronous steps",
    Cause.CHECKPOINTS: _SAVING,
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

WORDS: Final[Mapping[Bottleneck, CauseWords]] = {
    Cause.SAMPLERS: CauseWords(
        headline="Trainers wait for samples {share} of the time",
        plain_headline="Sampling limits throughput",
        cause="waits for samples",
        side="trainer GPU time",
        next_step="Speed up sampling: more requests per engine, faster engines, or more of them.",
        removed="Doubling the sampling speed",
        spent="trainers spent {gpu_time} waiting for samples",
    ),
    Cause.TRAINERS: CauseWords(
        headline="Trainers cannot keep up: samplers lose {share} of their GPU time to {cause}",
        plain_headline="Training limits throughput",
        cause="sampler waits",
        side="sampler GPU time",
        next_step="Make the training step faster, or give training more GPUs.",
        removed="Doubling the training speed",
    ),
    Cause.LOCKSTEP: CauseWords(
        headline="Trainers and samplers take turns, so GPUs wait {share} of the time",
        plain_headline="Sampling and training take turns",
        cause="trainers and samplers waiting for each other",
        side="all GPU time",
        next_step="Let samplers run one step ahead of the trainers.",
        removed="Overlapping sampling and training",
        spent="trainers and samplers spent {gpu_time} waiting for each other",
    ),
    Cause.STALENESS_CAP: CauseWords(
        headline="GPUs are blocked by the staleness cap {share} of the time",
        plain_headline="A limit on samples in flight limits throughput",
        cause="the staleness cap",
        side="all GPU time",
        next_step="Raise the cap if training stays stable with staler tokens.",
        spent="the staleness cap blocked samplers or trainers for {gpu_time}",
    ),
    Cause.WEIGHT_UPDATES: CauseWords(
        headline="Weight updates take {share} of all GPU time",
        plain_headline="Weight updates limit throughput",
        cause="weight updates",
        side="all GPU time",
        next_step="Publish less often, or make updates cheaper: if samplers have GPUs of their own, overlap the "
        "transfer with generation.",
        removed="Weight updates that take no time",
        spent="weight updates took {gpu_time}",
    ),
    Cause.ENVIRONMENT: CauseWords(
        headline="Waiting for the environment takes {share} of all GPU time",
        plain_headline="The environment limits throughput",
        cause="waits for the environment",
        side="all GPU time",
        next_step="Run more environments in parallel, or make the environment faster.",
        removed="An environment that takes no time",
        spent="samples waited for the environment, and GPUs had no other work for {gpu_time}",
    ),
    Cause.CHECKPOINTS: CauseWords(
        headline=f"Trainers spend {{share}} of their time on {_SAVING}",
        plain_headline=f"Trainers lose throughput to {_SAVING}",
        cause=_SAVING,
        side="trainer GPU time",
        next_step=_SAVING_NEXT,
        removed=f"Trainers without {_SAVING}",
        spent=f"trainers spent {{gpu_time}} on {_SAVING}",
    ),
    Cause.BALANCED: CauseWords(
        headline="No change is predicted to gain 5%",
        plain_headline="Neither side loses more than 10% of its time",
        cause="no bottleneck",
        side="GPU time",
        next_step="To go faster, speed up both sides, or add GPUs in the same ratio.",
    ),
    Cause.UNKNOWN: CauseWords(
        headline="Not enough data for a verdict",
        plain_headline="Not enough data for a verdict",
        cause="unknown causes",
        side="GPU time",
        next_step=(
            "Record the missing data and analyze again. A verdict needs at least one sampler and one trainer with "
            "GPUs, and a few tens of training steps."
        ),
    ),
}


_HELD: Final[Mapping[frozenset[str], str]] = {
    frozenset({"trainer"}): "trainers held back weight updates for {gpu_time} to stay within the staleness cap",
    frozenset({"sampler"}): "samplers paused for {gpu_time} because of the staleness cap",
}
"""Effect of a staleness cap, by the roles of the workers that it blocked."""
OPEN_LABEL: Final = "Trainers wait for samples"
"""Title of the verdict if a log does not show what delays the samples, or if judges or reward models do."""
BESIDE_AUXILIARY: Final = ", while the judges or reward models are nearly always busy"
"""End of the headline if judges or reward models may delay the samples."""


def verdict_label(bottleneck: Cause) -> str:
    """The verdict as a title."""
    if bottleneck in (Cause.BALANCED, Cause.UNKNOWN):
        return "Balanced" if bottleneck == Cause.BALANCED else "No verdict"
    return f"Bottleneck: {NAMES[bottleneck]}"


def only_recorded(text: str, states: Iterable[str]) -> str:
    """Name in a text about checkpoints and evaluation only what the trainers did, if it is one of them.

    states: the states of the trainers.
    """
    done = [_ONLY[state] for state in SAVING if state in states]
    if len(done) != 1:
        return text
    name, next_step = done[0]
    return text.replace(_SAVING_NEXT, next_step).replace(_SAVING, name)


def headline(verdict: Verdict, *, is_ranked: bool) -> str:
    """The verdict as one short sentence; is_ranked: whether it was read from the model's ranking of causes."""
    words = WORDS[verdict.bottleneck]
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
    return " and ".join(parts) if parts else WORDS[loss.cause].cause


def share_words(loss: Loss) -> str:
    """The lost share of the GPU time of the side that lost it, such as 62.3% of trainer GPU time."""
    return f"{fmt.percent(loss.side_share_ratio)} of {WORDS[loss.cause].side}"


def spent_words(loss: Loss, beside: Bottleneck | None = None, capped_roles: frozenset[str] = frozenset()) -> str:
    """The loss as a clause, with its GPU time and share.

    beside: the loss that was named before. capped_roles: the workers that the staleness cap blocked; empty if unknown.
    """
    gpu_time, share = fmt.gpu_time(loss.gpu_s), share_words(loss)
    held = _HELD.get(capped_roles) if loss.cause == Cause.STALENESS_CAP else None
    if held:
        return held.format(gpu_time=f"{gpu_time} ({share})")
    if said := WORDS[loss.cause].spent:
        return f"{said.format(gpu_time=gpu_time)} ({share})"
    parts = _sampler_losses(loss)
    if not parts:
        if beside in (None, loss.cause):
            return f"samplers were idle for {gpu_time} ({share})"
        return f"samplers were also idle for {gpu_time} ({share})"
    purpose = "on dropped samples" if len(parts) == 1 else "idle or on dropped samples"
    return f"samplers spent {gpu_time} {purpose} ({share})"


def _sampler_losses(loss: Loss) -> tuple[str, ...]:
    """Return the parts of a sampler loss, if dropped samples are among them; empty for any other loss."""
    dropped_gpu_s, least = loss.dropped_gpu_s or 0.0, _LEAST_PART_RATIO * loss.gpu_s
    if dropped_gpu_s <= least:
        return ()
    return ("dropped samples",) if loss.gpu_s - dropped_gpu_s <= least else ("sampler waits", "dropped samples")
