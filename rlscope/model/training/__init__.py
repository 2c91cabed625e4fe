"""Duration of training steps, and their scaling with trainer GPUs."""
