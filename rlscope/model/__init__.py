"""The performance model: what a run should achieve, why it does not, and which layout is faster. Pure computation."""
