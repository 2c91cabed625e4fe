"""Facts from device and model shape, before anything is measured: peaks, parameters, and room in the KV cache."""
