"""Importers: read runs recorded without hooks, from the metrics, logs and dumps of twelve frameworks.

A carrier turns a file into rows or lines and knows nothing about frameworks. A dialect is a table of a framework's
metric names. An importer turns both into rows of the trace format. The result is an ordinary run folder.
"""
