"""Follows a run in progress: reads new files, evaluates each tick once, remembers what was sent."""
