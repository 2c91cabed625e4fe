"""The policy as transformers has it, for the trainer to learn and for vLLM to load: digits in, digits out."""

from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import Qwen2Config, Qwen2ForCausalLM

from examples.pipeline_rl.task import ANSWER_VOCABULARY, BEGIN, END, PAD, VOCABULARY
from examples.vllm_torch.options import Options

HEADS = 4
KV_HEADS = 2
# vLLM's kernels want a width that this divides.
_VOCABULARY_MULTIPLE = 16


class Policy(nn.Module):
    """Logits of the tokens that may be an answer, at every position of whole sequences."""

    def __init__(self, options: Options) -> None:
        super().__init__()
        torch.manual_seed(options.seed)
        self.language_model = Qwen2ForCausalLM(_config(options))

    def forward(self, tokens: Tensor) -> Tensor:
        """Padding stands behind the response, where causal attention does not see it."""
        return self.language_model(input_ids=tokens, use_cache=False).logits[..., :ANSWER_VOCABULARY].float()

    def save(self, folder: Path) -> None:
        """Write a checkpoint that vLLM loads."""
        self.language_model.save_pretrained(folder)


def _config(options: Options) -> Qwen2Config:
    return Qwen2Config(
        vocab_size=-(-VOCABULARY // _VOCABULARY_MULTIPLE) * _VOCABULARY_MULTIPLE,
        hidden_size=options.width,
        intermediate_size=4 * options.width,
        num_hidden_layers=options.layers,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        max_position_embeddings=options.context_tokens,
        tie_word_embeddings=options.tied,
        bos_token_id=BEGIN,
        eos_token_id=END,
        pad_token_id=PAD,
    )
