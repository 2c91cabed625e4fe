"""A model that vLLM loads in no time: two layers, sixteen tokens, random weights, no tokenizer."""

from pathlib import Path
from typing import Any

from examples.vllm_torch.options import parse_options

PROMPT = [12, 1, 2, 3, 11]
BLOCK_TOKENS = 32


def save_tiny(folder: Path) -> Path:
    """Write the checkpoint; returns its file of weights."""
    from examples.vllm_torch.policy import Policy

    Policy(parse_options([str(folder), "--response-cap", "250"])).save(folder)
    return folder / "model.safetensors"


def engine_arguments(folder: Path, **more: Any) -> dict[str, Any]:
    """Arguments that every engine of these tests has."""
    from vllm.config import WeightTransferConfig

    return {
        "model": str(folder),
        "skip_tokenizer_init": True,
        "dtype": "float32",
        "enforce_eager": True,
        "max_model_len": 255,
        "block_size": BLOCK_TOKENS,
        "seed": 0,
        "weight_transfer_config": WeightTransferConfig(backend="shared_file"),
        **more,
    }
