"""Terminal output of the commands: the verdict card, model results, and the watch view."""
