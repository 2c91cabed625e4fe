"""What layouts would do, how sure that is, which to use next, and where the rest of the throughput went."""
