"""Data-parallel trainers: the lead hands every peer its share of a batch, and all add up their gradients by gloo.

The lead alone has the queue and publishes. A peer does what every rank but the first does in a real trainer: it waits
until its share comes, for the reason that the lead has, steps with the others, and waits again.
"""

import os
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from multiprocessing.connection import Connection
from statistics import fmean

import torch
from rlscope_otel import Run
from torch import distributed

from examples.pipeline_rl.counts import PeerCounts
from examples.pipeline_rl.device import SlowDevice
from examples.pipeline_rl.grpo import (
    MicroBatch,
    ScoredGroup,
    StepOutcome,
    current_logprobs,
    micro_batches,
    optimize,
)
from examples.pipeline_rl.links import Links
from examples.pipeline_rl.model import Model, flatten_weights
from examples.pipeline_rl.options import Options
from examples.pipeline_rl.task import PROMPT_TOKENS

BETWEEN_STEPS = "barrier"
"""Why a peer waits while the lead does what only the lead does: rewards, publishing, evaluations, checkpoints."""


@dataclass(frozen=True, slots=True)
class Share:
    """One rank's part of a batch."""

    step: int
    version: int
    is_published: bool
    groups: tuple[ScoredGroup, ...]
    batch_tokens: int
    """Response tokens of the whole batch: what the loss is divided by on every rank."""

    @property
    def samples(self) -> int:
        """Samples of this part."""
        return sum(len(scored.group.samples) for scored in self.groups)

    @property
    def tokens(self) -> int:
        """Prompt and response tokens of this part."""
        return response_tokens(self.groups) + self.samples * PROMPT_TOKENS

    @property
    def reward_mean(self) -> float:
        """Mean reward of this part's samples."""
        return fmean(reward for scored in self.groups for reward in scored.rewards)


def response_tokens(groups: Sequence[ScoredGroup]) -> int:
    """Response tokens of all samples."""
    return sum(len(sample.tokens) for scored in groups for sample in scored.group.samples)


class Replica:
    """One rank's copy of the model and its optimizer. Alone, it talks to nobody."""

    def __init__(self, options: Options, links: Links, run: Run, rank: int) -> None:
        self.options, self.run, self._ranks = options, run, options.trainers
        self._device = SlowDevice(options.slowdown_of(options.trainer_ids[rank]))
        if self._ranks > 1:
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
            distributed.init_process_group(
                "gloo", init_method=f"file://{links.rendezvous}", rank=rank, world_size=self._ranks
            )
        self.model = Model(options.shape)
        self.weights = flatten_weights(self.model)
        if self._ranks > 1:
            distributed.broadcast(self.weights, src=0)
        self._optimizer = torch.optim.AdamW(self.model.parameters(), lr=options.learning_rate, weight_decay=0.0)

    @property
    def compute_s(self) -> float:
        """Processor time of the last step's arithmetic."""
        return self._device.compute_s

    def compute(self, share: Share) -> StepOutcome:
        """One optimizer step on this rank's share."""
        with ExitStack() as arithmetic:
            arithmetic.enter_context(self._device.computing())
            pieces = micro_batches(share.groups, share.version)

            def add_up() -> None:
                # A slow device ends its own part before the others' can be added.
                arithmetic.close()
                self._add_up_gradients()

            proximal = self._logprobs_pass(pieces)
            return optimize(self.model, self._optimizer, pieces, proximal, share.batch_tokens, add_up)

    def _logprobs_pass(self, pieces: list[MicroBatch]) -> list[torch.Tensor] | None:
        if not self.options.logprobs_pass:
            return None
        with self.run.activity("logprobs"):
            return current_logprobs(self.model, pieces)

    def agree(self, version: int) -> int:
        """The lead's version, on every rank."""
        if self._ranks == 1:
            return version
        agreed = torch.tensor([version])
        distributed.broadcast(agreed, src=0)
        return int(agreed)

    def end(self) -> None:
        """Leave the group of ranks."""
        if self._ranks > 1:
            distributed.destroy_process_group()

    def _add_up_gradients(self) -> None:
        if self._ranks == 1:
            return
        gradients = [parameter.grad for parameter in self.model.parameters() if parameter.grad is not None]
        flat = torch.cat([gradient.view(-1) for gradient in gradients])
        distributed.all_reduce(flat)
        parts = flat.split([gradient.numel() for gradient in gradients])
        for gradient, part in zip(gradients, parts, strict=True):
            gradient.copy_(part.view_as(gradient))


class Peers:
    """The lead's ends of the pipes to all other ranks."""

    def __init__(self, pipes: Sequence[Connection]) -> None:
        self._pipes = pipes

    def wait_for(self, reason: str) -> None:
        """Tell them what all ranks wait for from now on."""
        for pipe in self._pipes:
            pipe.send(reason)

    def divide(self, batch: Sequence[ScoredGroup], step: int, version: int, *, is_published: bool) -> Share:
        """Send every peer its share, longest groups dealt first; the lead's own comes back."""
        tokens, ranks = response_tokens(batch), len(self._pipes) + 1
        dealt = sorted(batch, key=lambda scored: -response_tokens([scored])) if ranks > 1 else list(batch)
        shares = [
            Share(step, version, is_published, tuple(dealt[rank::ranks]), tokens) for rank in range(ranks)
        ]  # fmt: skip
        for pipe, share in zip(self._pipes, shares[1:], strict=True):
            pipe.send(share)
        return shares[0]

    def end(self) -> None:
        """Tell them that there is no next step; one that is gone has ended already."""
        for pipe in self._pipes:
            try:
                pipe.send(None)
            except OSError:
                continue


def record_step(run: Run, replica: Replica, share: Share, publishes: Callable[[], bool] | None = None) -> bool:
    """Compute one rank's share of a step under the hooks. Whether a version is published after it: the lead asks
    `publishes` when it has computed, and tells the others."""
    samples, tokens = share.samples, share.tokens
    with run.train_step(share.step, version_in=share.version, samples=samples, tokens=tokens) as record:
        outcome = replica.compute(share)
        version_out = replica.agree(share.version + (publishes is not None and publishes()))
        record.record(
            loss=outcome.loss,
            grad_norm=outcome.grad_norm,
            entropy=outcome.entropy,
            reward_mean=share.reward_mean,
            clip_ratio=outcome.clip_ratio,
            importance=[(m.staleness, m.tokens, m.sum_w, m.sum_w2) for m in outcome.moments],
            # Between two publications the trainer is ahead of every sampler, and no token is fresh.
            fresh=outcome.fresh if share.is_published else None,
            version_out=version_out,
        )
    return version_out > share.version


def follow_to_the_end(options: Options, links: Links, rank: int, run: Run) -> PeerCounts:
    """A peer's work between its start and its end."""
    with run.activity("startup"):
        torch.set_num_threads(1)
        torch.manual_seed(options.seed)
        replica = Replica(options, links, run, rank)
    counts, (orders,) = PeerCounts(run.worker_id), links.peers
    begun_cpu_s = time.process_time()
    while (share := _next_share(orders, run)) is not None:
        record_step(run, replica, share)
        counts.note(share.samples, share.tokens)
    counts.cpu_s = time.process_time() - begun_cpu_s
    replica.end()
    return counts


def _next_share(orders: Connection, run: Run) -> Share | None:
    """Wait with the lead's reason until the share comes; None at the end, or when the lead is gone."""
    reason = BETWEEN_STEPS
    while True:
        with run.wait(reason):
            try:
                order = orders.recv()
            except (EOFError, OSError):
                return None
        if not isinstance(order, str):
            return order
        reason = order
