"""Closed forms: the steady state of a layout, what each side loses by cause, the age of tokens, the upper bound."""
