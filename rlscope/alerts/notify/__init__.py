"""Telling people of alerts: one module a kind of receiver, and what they share.

`outbox` knows what each receiver has been told, `couriers` carries messages to them on threads of their own. A receiver
that is down is tried again with growing pauses; it never holds up whoever watches the run.
"""
