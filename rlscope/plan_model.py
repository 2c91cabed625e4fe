"""The model of a plan: counted from its Hugging Face config, or as the plan itself describes it."""

import json
from dataclasses import dataclass, replace
from typing import Any, Final

from rlscope.model.hardware import ModelShape
from rlscope.model.parameter_count import Counted, UncountableError, count_parameters
from rlscope.plan_file import PlanFile

_DENSE: Final = ("parameters", "layers", "attention_heads", "head_dim")
_MIXTURE: Final = ("experts", "experts_per_token", "active_parameters")


@dataclass(frozen=True, slots=True)
class Decoder:
    """What is sampled from and trained."""

    shape: ModelShape
    attention_width: int
    """Heads times their dimension."""


def decoder_of(file: PlanFile) -> Decoder:
    """The model; what the plan states itself counts more than its config. Raises RlscopeError."""
    model = file.model
    counted = None if model.config_json is None else _counted(file, model.config_json)
    if counted is None:
        _refuse_gaps(file)
    shape = ModelShape() if counted is None else counted.shape
    stated: dict[str, Any] = {
        "parameters": None if model.parameters is None else int(model.parameters),
        "active_parameters": None if model.active_parameters is None else int(model.active_parameters),
        "layers": model.layers,
        "kv_heads": model.kv_heads,
        "head_dim": model.head_dim,
        "experts": model.experts,
        "experts_per_token": model.experts_per_token,
        "kv_latent_dim": model.kv_latent_dim,
        "bytes_per_weight": model.bytes_per_weight,
        "bytes_per_kv": model.bytes_per_kv,
    }
    shape = replace(shape, **{name: value for name, value in stated.items() if value is not None})
    _refuse_contradictions(file, shape)
    if model.attention_heads is not None and shape.head_dim is not None:
        return Decoder(shape, model.attention_heads * shape.head_dim)
    return Decoder(shape, 0 if counted is None else counted.attention_width)


def _counted(file: PlanFile, name: str) -> Counted:
    path = file.text.path.parent / name
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(config, dict):
            raise UncountableError(f"a {type(config).__name__} in {path}")
        return count_parameters(config, file.model.bytes_per_weight, file.model.bytes_per_kv)
    except (OSError, ValueError, UncountableError) as error:
        raise file.text.error(
            "model",
            "config_json",
            found=str(error),
            expected="the config.json of a decoder that can be counted",
            next_step="Or leave it out, and give parameters, layers, attention_heads, kv_heads and head_dim.",
        ) from error


def _refuse_gaps(file: PlanFile) -> None:
    """Without a config the plan has to say everything."""
    model = file.model
    needed = (*_DENSE, "kv_heads" if model.kv_latent_dim is None else "kv_latent_dim")
    for name in needed:
        if getattr(model, name) is None:
            raise file.text.error("model", name, found="no such key", expected=f"{', '.join(needed)}, or config_json")


def _refuse_contradictions(file: PlanFile, shape: ModelShape) -> None:
    given = [name for name in _MIXTURE if getattr(shape, name) is not None]
    if given and len(given) < len(_MIXTURE):
        missing = next(name for name in _MIXTURE if name not in given)
        expected = f"all of {', '.join(_MIXTURE)} for a mixture of experts"
        raise file.text.error("model", missing, found="no such key", expected=expected)
    if (shape.active_parameters or 0) > (shape.parameters or 0):
        expected = f"at most the {shape.parameters:,} parameters of the model"
        raise file.text.error("model", "active_parameters", found=f"{shape.active_parameters:,}", expected=expected)
    if (shape.experts_per_token or 0) > (shape.experts or 0):
        expected = f"at most the {shape.experts} experts there are"
        raise file.text.error("model", "experts_per_token", found=str(shape.experts_per_token), expected=expected)
