"""TRL's asynchronous GRPO on CPU cores, recorded by one line: `python -m examples.trl_async RUN_DIR`."""
