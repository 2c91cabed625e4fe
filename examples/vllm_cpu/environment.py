"""The environment in which vLLM runs on a CPU, here and in child processes. To be prepared before vLLM is imported."""

import os
import sys
from pathlib import Path

_REPOSITORY = Path(__file__).parents[2]
_PLUGIN = Path(__file__).parent / "plugin"

_DEFAULTS = {
    "VLLM_TARGET_DEVICE": "cpu",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "HF_HUB_OFFLINE": "1",
    # Compiling for the first request with log-probabilities takes longer than the examples run.
    "TORCHDYNAMO_DISABLE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "OMP_NUM_THREADS": "1",
}


def prepare() -> None:
    """Set what is not set yet, and let every vLLM process find the weight transfer of `shared_file.py`."""
    for name, value in _DEFAULTS.items():
        os.environ.setdefault(name, value)
    inherited = [folder for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep) if folder]
    for folder in (str(_REPOSITORY), str(_PLUGIN)):
        if folder not in inherited:
            inherited.insert(0, folder)
        if folder not in sys.path:
            sys.path.append(folder)
    os.environ["PYTHONPATH"] = os.pathsep.join(inherited)
