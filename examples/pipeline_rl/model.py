"""A tiny decoder-only transformer with a KV cache, and its weights as one flat tensor.

Rows of the cache are slots: the running sequences occupy the first rows, so a batch is a slice and never a gather.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from examples.pipeline_rl.shape import ModelShape
from examples.pipeline_rl.task import ANSWER_VOCABULARY, VOCABULARY

# Small, so that an untrained model gives every token nearly the same chance, END included.
EMBEDDING_SPREAD = 0.04


class KVCache:
    """Keys and values of every layer, slot and position."""

    def __init__(self, shape: ModelShape, slots: int) -> None:
        size = (shape.layers, slots, shape.heads, shape.context_tokens, shape.width // shape.heads)
        self.keys, self.values = torch.zeros(size), torch.zeros(size)

    def write_prompts(self, layer: int, first_slot: int, keys: Tensor, values: Tensor) -> None:
        """Store what a prefill computed for consecutive slots."""
        rows, length = slice(first_slot, first_slot + keys.shape[0]), keys.shape[2]
        self.keys[layer, rows, :, :length] = keys
        self.values[layer, rows, :, :length] = values

    def append(self, layer: int, positions: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Store one token per slot; returns all keys and values up to the longest sequence."""
        rows = torch.arange(len(positions))
        self.keys[layer, rows, :, positions] = keys[:, :, 0]
        self.values[layer, rows, :, positions] = values[:, :, 0]
        length = int(positions.max()) + 1
        return self.keys[layer, : len(positions), :, :length], self.values[layer, : len(positions), :, :length]

    def move(self, source: int, target: int) -> None:
        """Give the sequence in slot `source` the slot `target`."""
        self.keys[:, target] = self.keys[:, source]
        self.values[:, target] = self.values[:, source]


class Block(nn.Module):
    """Attention and feed-forward, each behind a layer norm."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm, self.feed_forward_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.project_in, self.project_out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.feed_forward = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def split_heads(self, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values as [batch, head, position, channel]."""
        projected = self.project_in(self.attention_norm(hidden))
        projected = projected.unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        return projected[0], projected[1], projected[2]

    def join_heads(self, hidden: Tensor, attended: Tensor) -> Tensor:
        """The block's output from its input and what attention found."""
        hidden = hidden + self.project_out(attended.transpose(1, 2).flatten(2))
        return hidden + self.feed_forward(self.feed_forward_norm(hidden))


class Model(nn.Module):
    """The policy: tokens in, logits of answer tokens out."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, shape.width)
        self.positions = nn.Embedding(shape.context_tokens, shape.width)
        self.blocks = nn.ModuleList(Block(shape.width, shape.heads) for _ in range(shape.layers))
        self.norm = nn.LayerNorm(shape.width)
        nn.init.normal_(self.tokens.weight, std=EMBEDDING_SPREAD)
        nn.init.normal_(self.positions.weight, std=EMBEDDING_SPREAD)
        self._packed_head: Tensor | None = None

    def pack_head(self) -> None:
        """Copy the output head, which is tied to the embedding, as engines do that store it packed.

        The copy stays what it is when the embedding's weights are replaced: the fault that `--stale-head` shows.
        """
        self._packed_head = self.tokens.weight[:ANSWER_VOCABULARY].detach().clone()

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits of every position of whole sequences."""
        return self._logits(self._whole(tokens, None, 0))

    @torch.no_grad()
    def prefill(self, tokens: Tensor, cache: KVCache, first_slot: int) -> None:
        """Fill the cache with prompts of one length."""
        self._whole(tokens, cache, first_slot)

    @torch.no_grad()
    def decode(self, tokens: Tensor, positions: Tensor, cache: KVCache) -> Tensor:
        """Logits after one more token in each of the first len(tokens) slots."""
        hidden = (self.tokens(tokens) + self.positions(positions))[:, None]
        seen = (torch.arange(int(positions.max()) + 1) <= positions[:, None])[:, None, None]
        for layer, block in enumerate(self.blocks):
            queries, keys, values = block.split_heads(hidden)
            keys, values = cache.append(layer, positions, keys, values)
            attended = functional.scaled_dot_product_attention(queries, keys, values, attn_mask=seen)
            hidden = block.join_heads(hidden, attended)
        return self._logits(hidden)[:, 0]

    def _whole(self, tokens: Tensor, cache: KVCache | None, first_slot: int) -> Tensor:
        hidden = self.tokens(tokens) + self.positions.weight[: tokens.shape[1]]
        for layer, block in enumerate(self.blocks):
            queries, keys, values = block.split_heads(hidden)
            if cache is not None:
                cache.write_prompts(layer, first_slot, keys, values)
            attended = functional.scaled_dot_product_attention(queries, keys, values, is_causal=True)
            hidden = block.join_heads(hidden, attended)
        return hidden

    def _logits(self, hidden: Tensor) -> Tensor:
        head = self.tokens.weight[:ANSWER_VOCABULARY] if self._packed_head is None else self._packed_head
        return self.norm(hidden) @ head.T


def flatten_weights(model: Model) -> Tensor:
    """Move all parameters into one flat tensor, which from now on is the model's memory, and return it."""
    flat = parameters_to_vector(model.parameters()).detach().clone()
    vector_to_parameters(flat, model.parameters())
    return flat
