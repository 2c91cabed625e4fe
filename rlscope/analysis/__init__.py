"""Facts of one run: its workers, where the GPU time went, how stale the tokens were, and its bottleneck."""
