"""Hooks for inference engines and trainers, one module per framework.

Each module's docstring lists what it records, what it does not record, and the tested versions. Importing a module
loads nothing of the framework. Features that a version of the framework lacks are left out of the trace, without an
error.
"""
