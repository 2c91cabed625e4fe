"""The words of every format: each sentence is made once, here, and printed, drawn or written elsewhere."""
