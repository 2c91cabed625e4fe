"""Compares runs: what changed and why, and whether it is significant. Also lists and checks many runs."""
