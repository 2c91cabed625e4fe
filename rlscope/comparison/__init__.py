"""Runs beside each other: what changed between them, whether that is more than noise, and a list of many runs."""
