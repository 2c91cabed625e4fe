"""Parameters counted from a config, beside the counts that the published checkpoints of these shapes have."""

import pytest

from rlscope.model.hardware.parameters import UncountableError, count_parameters

KEYS = (
    "model_type", "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
    "num_key_value_heads",
)  # fmt: skip


def config_of(*values, **more):
    """A config with these values of the keys that every model has, and of further ones."""
    return dict(zip(KEYS, values, strict=True)) | more


LLAMA_8B = config_of("llama", 128256, 4096, 14336, 32, 32, 8)
QWEN25_HALF_B = config_of(
    "qwen2", 151936, 896, 4864, 24, 14, 2, tie_word_embeddings=True, sliding_window=32768, use_sliding_window=False
)
QWEN3_8B = config_of("qwen3", 151936, 4096, 12288, 36, 32, 8, head_dim=128)
QWEN3_30B_A3B = config_of(
    "qwen3_moe", 151936, 2048, 6144, 48, 32, 4, head_dim=128, moe_intermediate_size=768, num_experts=128,
    num_experts_per_tok=8, decoder_sparse_step=1, mlp_only_layers=[],
)  # fmt: skip
QWEN15_MOE = config_of(
    "qwen2_moe", 151936, 2048, 5632, 24, 16, 16, moe_intermediate_size=1408, shared_expert_intermediate_size=5632,
    num_experts=60, num_experts_per_tok=4,
)  # fmt: skip
MIXTRAL = config_of("mixtral", 32000, 4096, 14336, 32, 32, 8, num_local_experts=8, num_experts_per_tok=2)
DEEPSEEK_V3 = config_of(
    "deepseek_v3", 129280, 7168, 18432, 61, 128, 128, moe_intermediate_size=2048, n_routed_experts=256,
    n_shared_experts=1, num_experts_per_tok=8, first_k_dense_replace=3, q_lora_rank=1536, kv_lora_rank=512,
    qk_rope_head_dim=64, qk_nope_head_dim=128, v_head_dim=128,
)  # fmt: skip
CORRECTION_BIASES = 58 * 256
"""Of DeepSeek-V3's routers: in its checkpoint, but not trained."""


@pytest.mark.parametrize(
    ("config", "parameters", "kv_bytes_per_token"),
    [
        (LLAMA_8B, 8_030_261_248, 131_072),
        (QWEN25_HALF_B, 494_032_768, 12_288),
        (QWEN3_8B, 8_190_735_360, 147_456),
        (QWEN3_30B_A3B, 30_532_122_624, 98_304),
        (QWEN15_MOE, 14_315_784_192, 196_608),
        (MIXTRAL, 46_702_792_704, 131_072),
        (DEEPSEEK_V3, 671_026_419_200 - CORRECTION_BIASES, 70_272),
    ],
)
def test_published_models_are_counted_to_the_last_parameter(
    config: dict[str, object], parameters: int, kv_bytes_per_token: int
) -> None:
    shape = count_parameters(config, 2.0, 2.0).shape
    assert (shape.parameters, shape.kv_bytes_per_token()) == (parameters, kv_bytes_per_token)


def test_a_token_of_a_mixture_uses_all_but_the_experts_it_is_not_routed_to() -> None:
    shape = count_parameters(MIXTRAL, 2.0, 2.0).shape
    unused = 32 * (8 - 2) * 3 * 4096 * 14336
    assert shape.active_parameters == 46_702_792_704 - unused
    assert (shape.experts, shape.experts_per_token) == (8, 2)
    assert count_parameters(LLAMA_8B, 2.0, 2.0).shape.active_parameters is None


def test_layers_that_are_listed_as_dense_hold_no_experts() -> None:
    whole, some = (
        count_parameters(QWEN3_30B_A3B | {"mlp_only_layers": listed}, 2.0, 2.0).shape for listed in ([], [0, 1])
    )
    routed, dense = 128 * 3 * 2048 * 768 + 128 * 2048, 3 * 2048 * 6144
    assert whole.parameters - some.parameters == 2 * (routed - dense)


def test_biases_that_the_config_asks_for_are_counted() -> None:
    plain, biased = (
        count_parameters(LLAMA_8B | {"attention_bias": asked}, 2.0, 2.0).shape.parameters for asked in (False, True)
    )
    assert biased - plain == 32 * (4096 + 2 * 1024 + 4096)


def test_only_layers_with_full_attention_grow_where_the_config_says_which() -> None:
    kinds = ["sliding_attention"] * 24 + ["full_attention"] * 8
    shape = count_parameters(LLAMA_8B | {"sliding_window": 1024, "layer_types": kinds}, 2.0, 2.0).shape
    assert shape.kv_bytes_per_token() == 131_072 / 4


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "gpt2"}, "model_type 'gpt2', which is none of deepseek_v3, llama"),
        ({"vocab_size": None}, "vocab_size None, which is no positive number"),
        ({"num_hidden_layers": True}, "num_hidden_layers True"),
        ({"num_hidden_layers": 10_000_001}, "layers 10000001, which is no whole number from 1 to 10,000,000"),
        ({"num_key_value_heads": -1}, "num_key_value_heads -1, which is no whole number"),
        ({"head_dim": 128.0}, "head_dim 128.0, which is no whole number"),
    ],
)
def test_what_can_not_be_counted_is_named(change: dict[str, object], message: str) -> None:
    with pytest.raises(UncountableError, match=message):
        count_parameters(LLAMA_8B | change, 2.0, 2.0)
