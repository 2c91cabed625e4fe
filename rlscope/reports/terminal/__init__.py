"""What the commands print for people: the verdict card, the model, a run that is watched."""
