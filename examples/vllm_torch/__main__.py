"""`python -m examples.vllm_torch RUN_DIR [flags]`."""

import sys

from examples.vllm_cpu.environment import prepare
from examples.vllm_torch.launch import launch
from examples.vllm_torch.options import parse_options

if __name__ == "__main__":
    prepare()
    sys.exit(launch(parse_options(sys.argv[1:])))
