"""Importers: read runs recorded without hooks, from the metrics, logs and dumps of twelve frameworks.

A carrier turns a file into rows or lines and knows nothing about frameworks. The metric names of a
framework are in its table (`rlscope/frameworks`). An importer turns both into rows of the trace format.
"""
