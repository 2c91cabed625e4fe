"""The performance model: expected throughput of a run, reasons for the gap, and faster layouts. Pure computation."""
