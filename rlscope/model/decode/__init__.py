"""How long a forward pass takes, by batch and KV cache: measured passes, hardware priors, the fitted curve."""
