"""What device and model shape say before anything is measured: peaks, parameters, and room in the KV cache."""
