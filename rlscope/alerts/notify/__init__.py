"""Sends notifications about alerts.

`outbox` tracks what each receiver was sent, `couriers` delivers messages on threads of their own, and `senders` has one
function per kind of receiver. A receiver that is down is retried with growing pauses and never blocks the watch.
"""
