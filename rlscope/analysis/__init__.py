"""The facts of one run: who ran, where the GPU-seconds went, how old the tokens were, what held it back."""
