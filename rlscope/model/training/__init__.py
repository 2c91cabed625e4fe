"""How long training steps take, and how they scale with trainer GPUs."""
