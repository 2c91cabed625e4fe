"""Capture hooks: per-token policy versions, batch-size timelines and idle spans to Parquet."""
