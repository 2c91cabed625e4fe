"""One illness per module; RULES lists them."""
