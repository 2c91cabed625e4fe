"""`python -m examples.pipeline_rl RUN_DIR [flags]`."""

import sys

from examples.pipeline_rl.launch import launch
from examples.pipeline_rl.options import parse_options

if __name__ == "__main__":
    sys.exit(launch(parse_options(sys.argv[1:])))
