"""Before there is a run: a plan.toml, and the inputs of the model that are made of it."""
