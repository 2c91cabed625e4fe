"""The decoder of the GPU benchmark is a real one: its step attends to the whole cache, and it has the model's size."""

import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from benchmarks.gpu_decode import SHAPES, Decoder, turn_at, turned  # noqa: E402

pytestmark = pytest.mark.pipelines


def test_a_layers_step_is_attention_over_the_cache_written_out() -> None:
    torch.manual_seed(0)
    shape, batch, tokens = SHAPES["tiny"], 3, 7
    layer = Decoder(shape).layers[0]
    cache = torch.randn(2, batch, shape.kv_heads, tokens, shape.head_dim)
    hidden = torch.randn(batch, shape.hidden)
    turn = turn_at(tokens, shape, hidden)
    with torch.inference_mode():
        stepped = layer(hidden, cache, turn)
        heads = layer.query_key_value(layer.attention_norm(hidden)).view(batch, -1, shape.head_dim)
        query, key, value = heads.split((shape.heads, shape.kv_heads, shape.kv_heads), dim=1)
        torch.testing.assert_close(cache[0, :, :, -1], turned(key, turn))
        torch.testing.assert_close(cache[1, :, :, -1], value)
        keys, values = (part.repeat_interleave(shape.heads // shape.kv_heads, dim=1) for part in cache)
        scores = torch.einsum("bhd,bhtd->bht", turned(query, turn), keys) / shape.head_dim**0.5
        seen = torch.einsum("bht,bhtd->bhd", scores.softmax(dim=-1), values).reshape(batch, -1)
        after = hidden + layer.output(seen)
        gate, up = layer.gate_up(layer.mlp_norm(after)).chunk(2, dim=-1)
        expected = after + layer.down(torch.nn.functional.silu(gate) * up)
    torch.testing.assert_close(stepped, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("name", "parameters"),
    [("Qwen2.5-0.5B", 494_032_768), ("Qwen2.5-1.5B", 1_543_714_304), ("Qwen2.5-7B", 7_615_616_512)],
)
def test_a_decoder_has_the_parameters_of_its_model(name: str, parameters: int) -> None:
    with torch.device("meta"):
        decoder = Decoder(SHAPES[name])
    assert sum(parameter.numel() for parameter in decoder.parameters()) == parameters
