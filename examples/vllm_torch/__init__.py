"""An asynchronous RL pipeline around a real vLLM: one engine, one torch trainer, weights that change in flight."""
