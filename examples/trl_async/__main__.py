"""`python -m examples.trl_async RUN_DIR [flags]`."""

import os
import sys

from examples.trl_async.options import parse_options

if __name__ == "__main__":
    chosen = parse_options(sys.argv[1:])
    if (chosen.run_dir / "run.json").exists():
        sys.exit(f"{chosen.run_dir} already holds a run: give another folder")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    # Only now: both read the environment when they are imported.
    from examples.trl_async.report import closing_lines
    from examples.trl_async.train import train

    print(closing_lines(train(chosen)))
