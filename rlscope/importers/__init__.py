"""Runs that nobody hooked, read from what they left behind: metrics, logs and dumps of twelve frameworks.

A carrier turns a file into rows or lines and knows nothing of frameworks; a dialect is a table of a framework's names;
an importer makes rows of the trace format of them. The result is a run folder like any other.
"""
