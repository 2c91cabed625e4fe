"""A run that is still being written: follow its files, judge each tick once, remember what was sent."""
