"""How long a training step takes, by GPUs and tokens: fitted to the steps of a run, or from arithmetic before one."""
