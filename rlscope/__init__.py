"""rlscope: where the GPU-seconds of an asynchronous RL run went."""
