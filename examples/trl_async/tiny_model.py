"""A model of 0.2 M weights with its tokenizer and chat template, made here and saved to a folder: no download."""

from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

SPECIAL_TOKENS = ("<pad>", "<bos>", "<eos>", "<unk>", "<|user|>", "<|assistant|>", "<|end|>")
PAD, BOS, EOS = range(3)
FIRST_BYTE = len(SPECIAL_TOKENS)
LAST_BYTE = FIRST_BYTE + 255
VOCABULARY = 1024
"""What is above the bytes are tokens that mean nothing: a response is to avoid them."""
LONGEST_TOKENS = 512

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] == 'assistant' %}"
    "<|assistant|>{% generation %}{{ message['content'] }}<eos>{% endgeneration %}"
    "{% else %}<|user|>{{ message['content'] }}<|end|>{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
RESPONSE_TEMPLATE = {
    "defaults": {"role": "assistant"},
    "start_anchor": "<|assistant|>",
    "fields": {"content": {"close_pattern": "<eos>", "content": "text"}},
}


def make_tokenizer() -> PreTrainedTokenizerFast:
    """One token for each byte, behind the special ones."""
    vocabulary = {token: number for number, token in enumerate(SPECIAL_TOKENS)}
    for letter in sorted(pre_tokenizers.ByteLevel.alphabet()):
        vocabulary[letter] = len(vocabulary)
    while len(vocabulary) < VOCABULARY:
        vocabulary[f"<nothing {len(vocabulary)}>"] = len(vocabulary)
    tokenizer = Tokenizer(BPE(vocab=vocabulary, merges=[], unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<bos>",
        eos_token="<eos>",
        pad_token="<pad>",
        unk_token="<unk>",
        additional_special_tokens=list(SPECIAL_TOKENS[FIRST_BYTE - 3 :]),
        padding_side="left",
        chat_template=CHAT_TEMPLATE,
    )


def make_model(seed: int, tied: bool) -> Qwen2ForCausalLM:
    """Random weights; `tied`: the head is the embedding."""
    torch.manual_seed(seed)
    model = Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=VOCABULARY,
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=1,
            max_position_embeddings=LONGEST_TOKENS,
            tie_word_embeddings=tied,
            pad_token_id=PAD,
            bos_token_id=BOS,
            eos_token_id=EOS,
        )
    )
    model.generation_config.pad_token_id = PAD
    model.generation_config.eos_token_id = EOS
    return model


def save_tiny(folder: Path, seed: int = 0, tied: bool = False) -> Path:
    """Model and tokenizer as a folder that every engine and trainer can load."""
    make_tokenizer().save_pretrained(folder)
    make_model(seed, tied).save_pretrained(folder)
    return folder


def byte_share_ratio(token_ids: list[int]) -> float:
    """The reward: how many of the tokens are bytes. 0.25 for a policy that draws them at random."""
    return sum(FIRST_BYTE <= token <= LAST_BYTE for token in token_ids) / max(1, len(token_ids))
