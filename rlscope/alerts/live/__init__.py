"""Follows a run in progress: reads new files, evaluates each tick once and remembers the alerts already sent."""
