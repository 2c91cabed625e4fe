"""Hooks for inference engines and trainers, one module per framework.

Each module's docstring lists what it records, what it does not, and which versions it was run with. Importing a module
loads nothing of the framework. What a version of the framework lacks is left out of the trace; it is never an error.
"""
