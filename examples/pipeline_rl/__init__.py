"""A small asynchronous RL pipeline in plain torch: samplers, a queue and a trainer, each a process, on CPU cores."""
