"""GPU-seconds by state, closed to 100 %.

The states are made in `queries/ledger.sql`; this module adds them up and refuses a ledger that does not close.
"""
