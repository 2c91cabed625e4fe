"""One inference engine: a KV cache, the running batch and two kinds of forward pass; no process, no queue."""

from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional

from examples.pipeline_rl.model import KVCache, Model
from examples.pipeline_rl.shape import ModelShape
from examples.pipeline_rl.task import END


@dataclass(slots=True)
class Sequence:
    """A request: its prompt, then what was sampled, token by token."""

    sample_id: str
    prompt: tuple[int, ...]
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)

    @property
    def last_token(self) -> int:
        """The newest token, not yet in the cache."""
        return self.tokens[-1] if self.tokens else self.prompt[-1]

    @property
    def cached_tokens(self) -> int:
        """Tokens whose keys and values are in the cache: all but the newest."""
        return len(self.prompt) + len(self.tokens) - 1


class Engine:
    """Continuous batching over fixed slots: sequences join and leave between passes, weights may change there too."""

    def __init__(self, model: Model, shape: ModelShape, slots: int) -> None:
        self.model, self.slots = model, slots
        self.cache = KVCache(shape, slots)
        self.running: list[Sequence] = []
        self.version = 0
        self._response_cap_tokens = shape.response_cap_tokens

    @property
    def free_slots(self) -> int:
        """How many more sequences fit."""
        return self.slots - len(self.running)

    @property
    def kv_used_tokens(self) -> int:
        """Tokens resident in the cache."""
        return sum(sequence.cached_tokens for sequence in self.running)

    def prefill(self, sequences: list[Sequence]) -> int:
        """Join new sequences to the batch; returns the prompt tokens processed: all but the last of each."""
        prompts = torch.tensor([sequence.prompt[:-1] for sequence in sequences])
        self.model.prefill(prompts, self.cache, len(self.running))
        self.running.extend(sequences)
        return prompts.numel()

    def decode(self) -> tuple[list[int], list[float]]:
        """One forward pass: the next token of every running sequence and its log-probability."""
        tokens = torch.tensor([sequence.last_token for sequence in self.running])
        positions = torch.tensor([sequence.cached_tokens for sequence in self.running])
        logprobs = functional.log_softmax(self.model.decode(tokens, positions, self.cache), dim=-1)
        sampled = torch.multinomial(logprobs.exp(), 1)
        return sampled[:, 0].tolist(), logprobs.gather(1, sampled)[:, 0].tolist()

    def accept(self, tokens: list[int], logprobs: list[float]) -> list[Sequence]:
        """Append what a decode pass sampled; returns the sequences that are finished and frees their slots."""
        for sequence, token, logprob in zip(self.running, tokens, logprobs, strict=True):
            sequence.tokens.append(token)
            sequence.logprobs.append(logprob)
            sequence.versions.append(self.version)
        finished = [slot for slot, sequence in enumerate(self.running) if self._is_finished(sequence)]
        return [self._release(slot) for slot in reversed(finished)]

    def _is_finished(self, sequence: Sequence) -> bool:
        return sequence.tokens[-1] == END or len(sequence.tokens) == self._response_cap_tokens

    def _release(self, slot: int) -> Sequence:
        released, last = self.running[slot], len(self.running) - 1
        if slot != last:
            self.cache.move(last, slot)
            self.running[slot] = self.running[last]
        self.running.pop()
        return released


def finish_reason(sequence: Sequence) -> str:
    """Why generation ended."""
    return "stop" if sequence.tokens[-1] == END else "length"


@torch.no_grad()
def answer_greedily(model: Model, shape: ModelShape, prompts: list[tuple[int, ...]]) -> list[list[int]]:
    """The most likely response to each prompt."""
    cache, responses = KVCache(shape, len(prompts)), [[] for _ in prompts]
    model.prefill(torch.tensor([prompt[:-1] for prompt in prompts]), cache, 0)
    tokens: Tensor = torch.tensor([prompt[-1] for prompt in prompts])
    for position in range(len(prompts[0]) - 1, shape.context_tokens - 1):
        tokens = model.decode(tokens, torch.full((len(prompts),), position), cache).argmax(-1)
        for response, token in zip(responses, tokens.tolist(), strict=True):
            if not response or response[-1] != END:
                response.append(token)
        if all(response[-1] == END for response in responses):
            break
    return responses
