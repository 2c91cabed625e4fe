"""What device and model shape say before anything is measured: peaks, parameters, room in the KV cache."""
