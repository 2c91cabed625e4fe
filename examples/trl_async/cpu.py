"""What TRL's asynchronous trainer needs to run without a GPU: attention for its packed rows, and no peak FLOPs."""

from itertools import pairwise
from types import SimpleNamespace

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from trl.experimental.async_grpo import async_grpo_trainer, packing


def attend_to_lengths(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    query_ends: Tensor,
    key_ends: Tensor,
    _longest_query: int,
    _longest_key: int,
    softmax_scale: float | None = None,
    **_unused: object,
) -> Tensor:
    """Causal attention of segments laid end to end, as the kernel that TRL loads from a hub does it on a GPU.

    Shapes: query (tokens, heads, width), key and value (tokens, KV heads, width). The last query of a segment sees all
    its keys.
    """
    shared = query.shape[1] // key.shape[1]
    outputs: list[Tensor] = []
    bounds = [ends.tolist() for ends in (query_ends, key_ends)]
    for (q_from, q_to), (k_from, k_to) in zip(*(pairwise(ends) for ends in bounds), strict=True):
        queries, keys = q_to - q_from, k_to - k_from
        seen = torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries)
        attended = scaled_dot_product_attention(
            query[q_from:q_to].transpose(0, 1)[None],
            key[k_from:k_to].transpose(0, 1).repeat_interleave(shared, 0)[None],
            value[k_from:k_to].transpose(0, 1).repeat_interleave(shared, 0)[None],
            attn_mask=seen,
            scale=softmax_scale,
        )
        outputs.append(attended[0].transpose(0, 1))
    return torch.cat(outputs)


def prepare_trl() -> None:
    """Put both in TRL's place."""
    packing._flash_attn = lambda: SimpleNamespace(flash_attn_varlen_func=attend_to_lengths)
    async_grpo_trainer.get_peak_flops_per_device = lambda *_arguments: None
