"""Rules over a run: while it is being written, after it ran, and in CI, with the definitions of the report."""
