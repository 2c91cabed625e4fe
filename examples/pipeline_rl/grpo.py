"""GRPO: advantages within a group, a clipped objective on importance ratios, and the ratios' moments by staleness."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean, pstdev
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.utils import clip_grad_norm_

from examples.pipeline_rl.groups import FinishedGroup, FinishedSample
from examples.pipeline_rl.model import Model
from examples.pipeline_rl.task import ANSWER_VOCABULARY, PAD, PROMPT_TOKENS, prompt_of

CLIP_LOW, CLIP_HIGH = 0.8, 1.28
LARGEST_BEHAVIOR_WEIGHT = 2.0
LARGEST_GRAD_NORM = 1.0
SAMPLES_PER_MICROBATCH = 16


@dataclass(frozen=True, slots=True)
class ScoredGroup:
    """A group with one reward per sample."""

    group: FinishedGroup
    rewards: tuple[float, ...]
    taken_ns: int

    @property
    def is_flat(self) -> bool:
        """Whether there is nothing to learn: every sample has the same reward."""
        return len(set(self.rewards)) == 1

    def advantages(self) -> list[float]:
        """Rewards relative to the group's own mean, in its own standard deviations."""
        mean, spread = fmean(self.rewards), pstdev(self.rewards)
        return [(reward - mean) / (spread + 1e-4) for reward in self.rewards]


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Sequences of similar length; all tensors but `tokens` and `advantages` run over next-token positions."""

    tokens: Tensor
    mask: Tensor
    behavior_logprobs: Tensor
    staleness: Tensor
    fresh: Tensor
    """Per row: whether the step's version sampled it from the first token on, and so computed its whole context."""
    advantages: Tensor


@dataclass(frozen=True, slots=True)
class Moment:
    """Importance ratios w of the tokens of one staleness."""

    staleness: int
    tokens: int
    sum_w: float
    sum_w2: float


class FreshMoment(NamedTuple):
    """Importance ratios w of the fresh tokens: those alone are 1 but for rounding when the sampler has the weights."""

    tokens: int
    sum_w: float
    sum_w2: float


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """What one optimizer step gives to the log."""

    loss: float
    grad_norm: float
    entropy: float
    clip_ratio: float
    moments: tuple[Moment, ...]
    fresh: FreshMoment


def micro_batches(groups: Sequence[ScoredGroup], version: int) -> list[MicroBatch]:
    """The batch in pieces, sorted by length so that little is padding."""
    rows = [
        (scored.group.target, sample, advantage)
        for scored in groups
        for sample, advantage in zip(scored.group.samples, scored.advantages(), strict=True)
    ]
    rows.sort(key=lambda row: len(row[1].tokens))
    pieces = (rows[start : start + SAMPLES_PER_MICROBATCH] for start in range(0, len(rows), SAMPLES_PER_MICROBATCH))
    return [_collate(piece, version) for piece in pieces]


def _collate(rows: list[tuple[int, FinishedSample, float]], version: int) -> MicroBatch:
    longest = max(len(sample.tokens) for _, sample, _ in rows)
    before = PROMPT_TOKENS - 1

    def padded(values: list[tuple[float, ...]], filler: float, dtype: torch.dtype) -> Tensor:
        return torch.tensor([[*row, *[filler] * (longest - len(row))] for row in values], dtype=dtype)

    def behind_prompt(values: list[tuple[float, ...]], dtype: torch.dtype) -> Tensor:
        return functional.pad(padded(values, 0, dtype), (before, 0))

    samples = [sample for _, sample, _ in rows]
    prompts = torch.tensor([prompt_of(target) for target, _, _ in rows])
    return MicroBatch(
        tokens=torch.cat([prompts, padded([sample.tokens for sample in samples], PAD, torch.long)], dim=1),
        mask=behind_prompt([(1.0,) * len(sample.tokens) for sample in samples], torch.float32),
        behavior_logprobs=behind_prompt([sample.logprobs for sample in samples], torch.float32),
        staleness=behind_prompt([tuple(version - v for v in sample.versions) for sample in samples], torch.long),
        fresh=torch.tensor([sample.versions[0] == version for sample in samples])[:, None],
        advantages=torch.tensor([advantage for _, _, advantage in rows])[:, None],
    )


def token_logprobs(model: Model, batch: MicroBatch) -> tuple[Tensor, Tensor]:
    """Log-probability of each next token, and the entropy of the distribution it came from."""
    logprobs = functional.log_softmax(model(batch.tokens[:, :-1]), dim=-1)
    chosen = batch.tokens[:, 1:].clamp(max=ANSWER_VOCABULARY - 1)  # What is no answer token is masked out anyway.
    entropy = -(logprobs.detach().exp() * logprobs.detach()).sum(-1)
    return logprobs.gather(2, chosen[..., None])[..., 0], entropy


@torch.no_grad()
def current_logprobs(model: Model, batches: list[MicroBatch]) -> list[Tensor]:
    """Log-probabilities under the weights before the step, for the decoupled objective."""
    return [token_logprobs(model, batch)[0] for batch in batches]


def optimize(
    model: Model,
    optimizer: torch.optim.Optimizer,
    batches: list[MicroBatch],
    proximal: list[Tensor] | None,
    batch_tokens: int | None = None,
    before_step: Callable[[], None] = lambda: None,
) -> StepOutcome:
    """One optimizer step; `proximal` are the results of `current_logprobs` when the objective is decoupled.

    Gradients are those of the mean over `batch_tokens` response tokens, these alone if None. Other ranks may hold some
    of them, whose gradients `before_step` adds. The outcome speaks of this rank's own tokens.
    """
    total_tokens = float(sum(batch.mask.sum() for batch in batches))
    loss = entropy = clipped = 0.0
    ratios: list[Tensor] = []
    optimizer.zero_grad()
    for index, batch in enumerate(batches):
        logprobs, token_entropy = token_logprobs(model, batch)
        anchor = batch.behavior_logprobs if proximal is None else proximal[index]
        objective, outside = _clipped_objective(logprobs, anchor, batch)
        piece_loss = -(objective * batch.mask).sum()
        (piece_loss / (batch_tokens or total_tokens)).backward()
        loss += piece_loss.item() / total_tokens
        entropy += float((token_entropy * batch.mask).sum()) / total_tokens
        clipped += float((outside * batch.mask).sum()) / total_tokens
        ratios.append((logprobs.detach() - batch.behavior_logprobs).exp())
    before_step()
    grad_norm = float(clip_grad_norm_(model.parameters(), LARGEST_GRAD_NORM))
    optimizer.step()
    return StepOutcome(loss, grad_norm, entropy, clipped, _moments(batches, ratios), _fresh_moment(batches, ratios))


def _clipped_objective(logprobs: Tensor, anchor: Tensor, batch: MicroBatch) -> tuple[Tensor, Tensor]:
    """Per token: the pessimistic objective, and whether its ratio to the anchor lies outside the clip range."""
    ratio = (logprobs - anchor).exp()
    clamped = ratio.clamp(CLIP_LOW, CLIP_HIGH)
    behavior_weight = (anchor - batch.behavior_logprobs).exp().clamp(max=LARGEST_BEHAVIOR_WEIGHT)
    objective = behavior_weight * torch.min(ratio * batch.advantages, clamped * batch.advantages)
    return objective, (ratio != clamped).float().detach()


def _moments(batches: list[MicroBatch], ratios: list[Tensor]) -> tuple[Moment, ...]:
    kept = [batch.mask.bool() for batch in batches]
    staleness = torch.cat([batch.staleness[mask] for batch, mask in zip(batches, kept, strict=True)])
    weights = torch.cat([ratio[mask] for ratio, mask in zip(ratios, kept, strict=True)]).double()
    tokens = torch.bincount(staleness).tolist()
    sum_w = torch.bincount(staleness, weights).tolist()
    sum_w2 = torch.bincount(staleness, weights**2).tolist()
    return tuple(Moment(age, tokens[age], sum_w[age], sum_w2[age]) for age in range(len(tokens)) if tokens[age])


def _fresh_moment(batches: list[MicroBatch], ratios: list[Tensor]) -> FreshMoment:
    kept = [batch.mask.bool() & batch.fresh for batch in batches]
    weights = torch.cat([ratio[mask] for ratio, mask in zip(ratios, kept, strict=True)]).double()
    return FreshMoment(len(weights), float(weights.sum()), float((weights**2).sum()))
