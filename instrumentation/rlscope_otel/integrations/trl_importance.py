"""The importance ratio of each token between the trainer's policy and the one that sampled it, by token staleness.

w = exp(log-probability now - log-probability when sampled), the ratio whose clipped product with the advantage GRPO
maximises (Schulman et al. 2017, section 3, https://arxiv.org/abs/1707.06347). TRL logs
its mean over the batch; here its moments are recorded by token staleness. The log-probabilities are those that the loss
is computed from, taken from the model's output.

A token is fresh if the version that trains on it sampled its whole sample, and the trainer's weights are still those
that it published: with `weight_sync_steps` above 1, only in the first step after a sync.
"""

from typing import Any, NamedTuple

from rlscope_otel.integrations.seams import Call
from rlscope_otel.integrations.trl_queue import Batch, Taken
from rlscope_otel.integrations.trl_trainer import Steps


class Importance:
    """The ratios of one trainer's micro-batches."""

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        self._version = 0
        self._is_published = False
        self._batch: Batch | None = None
        self._is_losing = False
        self._logprobs: Any = None
        self._handle: Any = None

    def listen(self, model: Any) -> None:
        """See what the model puts out."""
        self._handle = model.register_forward_hook(self._seen)

    def close(self) -> None:
        """See no more."""
        if self._handle is not None:
            self._handle.remove()

    def begin(self, version: int, batch: Batch | None, is_published: bool) -> None:
        """A micro-batch is about to be trained on; `is_published`: by the very weights that were published last."""
        self._version, self._batch, self._is_published = version, batch, is_published

    def losing(self, call: Call) -> None:
        """The loss of a micro-batch begins."""
        self._is_losing = True

    def lost(self, call: Call) -> None:
        """The loss is known. TRL has just read numbers of it from the device, so a few more cost little."""
        self._is_losing = False
        logprobs, self._logprobs = self._logprobs, None
        if call.error is not None or logprobs is None or self._batch is None:
            return
        inputs = self.inputs_of(call)
        selected = inputs["token_index"] >= 0
        now = logprobs.detach().flatten()[inputs["token_index"][selected]]
        ratios = (now - inputs["old_log_probs"][selected]).exp().double()
        self._add(ratios)

    def inputs_of(self, call: Call) -> Any:
        """The micro-batch of a `compute_loss`."""
        return call.args[2] if len(call.args) > 2 else call.kwargs["inputs"]

    def _seen(self, _module: Any, _inputs: Any, output: Any) -> None:
        if self._is_losing:
            self._logprobs = getattr(output, "log_probs", None)

    def _add(self, ratios: Any) -> None:
        """Sum them up by age and freshness. They are in the order of the rows and, in each, of its tokens."""
        assert self._batch is not None
        runs = [run for taken in self._batch.own for run in self._runs(taken)]
        if sum(run.tokens for run in runs) != len(ratios):
            return
        kinds = sorted({(run.age, run.is_fresh) for run in runs})
        kind_of_run = ratios.new_tensor([kinds.index((run.age, run.is_fresh)) for run in runs]).long()
        kind = kind_of_run.repeat_interleave(ratios.new_tensor([run.tokens for run in runs]).long())
        sums = ratios.new_zeros(2, len(kinds))
        sums[0].index_add_(0, kind, ratios)
        sums[1].index_add_(0, kind, ratios**2)
        for (age, is_fresh), sum_w, sum_w2 in zip(kinds, *sums.tolist(), strict=True):
            tokens = sum(run.tokens for run in runs if (run.age, run.is_fresh) == (age, is_fresh))
            self._steps.add_moment((age, tokens, sum_w, sum_w2), is_fresh)

    def _runs(self, taken: Taken) -> list["_Run"]:
        is_fresh = self._is_published and set(taken.tokens_by_version) == {self._version}
        return [_Run(self._version - sampled, is_fresh, tokens) for sampled, tokens in taken.tokens_by_version.items()]


class _Run(NamedTuple):
    """Consecutive tokens of one row that one version sampled."""

    age: int
    is_fresh: bool
    tokens: int
