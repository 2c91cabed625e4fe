"""Number of parameters of a decoder, counted from its Hugging Face config.

The families listed here are covered: pre-norm decoders with grouped-query attention (or compressed attention, for
DeepSeek-V3), gated feed-forward layers, and routed experts. Not covered: other families, whose count has to be given;
towers for images and sound; and heads that predict several tokens at once.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from rlscope.model.hardware.devices import ModelShape

FAMILIES: Final = (
    "deepseek_v3",
    "llama",
    "mistral",
    "mixtral",
    "qwen2",
    "qwen2_moe",
    "qwen3",
    "qwen3_moe",
)
"""`model_type` of the configs that can be counted."""
_QUERY_BIASED: Final = frozenset({"qwen2", "qwen2_moe"})
"""Families with biases on queries, keys and values, whatever the config says."""
_NORMED_HEADS: Final = frozenset({"qwen3", "qwen3_moe"})
"""Families with a norm over each head of queries and keys."""
_GATED_MATRICES: Final = 3
"""Matrices of a gated feed-forward layer: gate, up, down (Shazeer 2020)."""
_MOST: Final = 10_000_000
"""Maximum of any size: no model is near it, and each layer takes time to count."""


class UncountableError(Exception):
    """The config lacks an entry, or is of a family whose layers are unknown. The message names it."""


@dataclass(frozen=True, slots=True)
class Counted:
    """Sizes that a config describes."""

    shape: ModelShape
    attention_width: int
    """Heads times their dimension."""
    hidden_size: int
    """Values of a token between layers."""


def count_parameters(config: Mapping[str, object], bytes_per_weight: float, bytes_per_kv: float) -> Counted:
    """Count the shape that a config.json describes. Raises UncountableError.

    Sums the matrices of each layer as the families' own code builds them; checked against the counts of published
    models.
    """
    family = config.get("model_type")
    if family not in FAMILIES:
        raise UncountableError(f"model_type {family!r}, which is none of {', '.join(FAMILIES)}")
    hidden, layers = _entry(config, "hidden_size"), _entry(config, "num_hidden_layers")
    attention = _compressed_attention(config) if family == "deepseek_v3" else _grouped_attention(config)
    experts, routed_layers = _experts(config), _routed_layers(config)
    expert = _GATED_MATRICES * hidden * _expert_width(config)
    dense_layers = layers - routed_layers
    dense = dense_layers * _GATED_MATRICES * hidden * (_entry(config, "intermediate_size") if dense_layers else 0)
    # Routed layers also hold a router, and experts that every token uses.
    shared = routed_layers * (experts * hidden + _shared(config))
    tables = (1 if config.get("tie_word_embeddings", False) else 2) * _entry(config, "vocab_size") * hidden
    always = tables + layers * (attention + 2 * hidden) + hidden + dense + shared
    per_token = _entry(config, "num_experts_per_tok") if routed_layers else 0
    latent = _entry(config, "kv_lora_rank") + _entry(config, "qk_rope_head_dim") if family == "deepseek_v3" else None
    heads = _heads(config)
    shape = ModelShape(
        parameters=always + routed_layers * experts * expert,
        active_parameters=always + routed_layers * per_token * expert if routed_layers else None,
        layers=layers,
        kv_heads=heads.kv,
        head_dim=heads.width,
        bytes_per_weight=bytes_per_weight,
        bytes_per_kv=bytes_per_kv,
        experts=experts if routed_layers else None,
        experts_per_token=per_token or None,
        kv_latent_dim=latent,
        **_window(config),
    )
    return Counted(shape, heads.queries * heads.width, hidden)


@dataclass(frozen=True, slots=True)
class _Heads:
    queries: int
    kv: int
    width: int


def _heads(config: Mapping[str, object]) -> _Heads:
    queries = _entry(config, "num_attention_heads")
    width = _entry(config, "v_head_dim") if "v_head_dim" in config else _optional(config, "head_dim")
    known = width or _entry(config, "hidden_size") // queries
    return _Heads(queries, _optional(config, "num_key_value_heads") or queries, known)


def _grouped_attention(config: Mapping[str, object]) -> int:
    """Queries, keys, values and output of one layer, with biases and norms of heads (Ainslie et al. 2023)."""
    heads, hidden, family = _heads(config), _entry(config, "hidden_size"), config.get("model_type")
    asked, held = heads.queries * heads.width, heads.kv * heads.width
    biased = family in _QUERY_BIASED or bool(config.get("attention_bias"))
    biases = asked + 2 * held if biased else 0
    # The llama family also puts its bias on the output; families that always have one leave it out there.
    biases += hidden if biased and family not in _QUERY_BIASED else 0
    norms = 2 * heads.width if family in _NORMED_HEADS else 0
    return hidden * (2 * asked + 2 * held) + biases + norms


def _compressed_attention(config: Mapping[str, object]) -> int:
    """Down and up projections of queries, keys and values of one layer (DeepSeek-V2, 2024, section 2.1)."""
    hidden, heads = _entry(config, "hidden_size"), _entry(config, "num_attention_heads")
    rope, plain = _entry(config, "qk_rope_head_dim"), _entry(config, "qk_nope_head_dim")
    latent, value = _entry(config, "kv_lora_rank"), _entry(config, "v_head_dim")
    query_rank = _optional(config, "q_lora_rank")
    asked = heads * (plain + rope)
    queries = hidden * asked if query_rank is None else query_rank * (hidden + 1 + asked)
    keys_values = hidden * (latent + rope) + latent + latent * heads * (plain + value)
    return queries + keys_values + heads * value * hidden


def _experts(config: Mapping[str, object]) -> int:
    """Number of experts that tokens are routed to, under any of its names; 0: a dense model."""
    names = ("num_experts", "num_local_experts", "n_routed_experts")
    return next((count for name in names if (count := _optional(config, name))), 0)


def _expert_width(config: Mapping[str, object]) -> int:
    return _optional(config, "moe_intermediate_size") or _entry(config, "intermediate_size")


def _routed_layers(config: Mapping[str, object]) -> int:
    """Layers with experts: all but the first few, every nth, and excluding those listed as dense."""
    if not _experts(config):
        return 0
    layers, every = _entry(config, "num_hidden_layers"), _optional(config, "decoder_sparse_step") or 1
    first = _optional(config, "first_k_dense_replace") or 0
    listed = config.get("mlp_only_layers")
    dense = {layer for layer in listed if isinstance(layer, int)} if isinstance(listed, list) else set[int]()
    return sum(layer >= first and layer not in dense and (layer + 1) % every == 0 for layer in range(layers))


def _shared(config: Mapping[str, object]) -> int:
    """Parameters per layer of the experts that every token uses; some families put a gate on them."""
    hidden = _entry(config, "hidden_size")
    gated = _optional(config, "shared_expert_intermediate_size") or 0
    ungated = (_optional(config, "n_shared_experts") or 0) * _expert_width(config)
    return _GATED_MATRICES * hidden * (gated + ungated) + (hidden if gated else 0)


def _window(config: Mapping[str, object]) -> dict[str, int | None]:
    """Layers that hold only a window of tokens, if the config lists them."""
    window = _optional(config, "sliding_window")
    if window is None or config.get("use_sliding_window") is False:
        return {}
    kinds = config.get("layer_types")
    growing = sum(kind == "full_attention" for kind in kinds) if isinstance(kinds, list) else 0
    return {"sliding_window_tokens": window, "full_attention_layers": growing}


def _optional(config: Mapping[str, object], name: str) -> int | None:
    """Return a number that a config may leave out: None, 0 or false do. Raises UncountableError for anything else."""
    value = config.get(name) or None
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or not 0 < value <= _MOST):
        raise UncountableError(f"{name} {value!r}, which is no whole number from 1 to {_MOST:,}")
    return value


def _entry(config: Mapping[str, object], name: str) -> int:
    value = _optional(config, name)
    if value is None:
        raise UncountableError(f"{name} {config.get(name)!r}, which is no positive number")
    return value
