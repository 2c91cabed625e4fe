"""Closed forms of the steady state: engine time, limits, staleness, the synchronous step and the upper bound."""
