"""Hooks for the engines and trainers that people run, one file a framework.

Each file's docstring says what it records, what it cannot, and which versions it was run with. Importing a file loads
none of the framework, and what a framework lacks in some version is left out of the trace, never an error in the run.
"""
