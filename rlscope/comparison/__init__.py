"""Compares runs: what changed, whether it is significant, and why. Also lists and checks many runs."""
