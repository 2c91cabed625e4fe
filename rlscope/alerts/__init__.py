"""Alert rules on a run: while it is written, after it ended, and in CI, with the same definitions as the report."""
