"""A run for other tools: its timeline as a Perfetto trace, its results in a tracker of experiments."""
