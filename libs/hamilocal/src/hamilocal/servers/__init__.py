"""Servers of the local system on loopback addresses: PostgreSQL, NATS, Valkey.

Each module of `data` turns a folder into a `ServerPlan` (what to run, where it will answer, how to
ask whether it is ready); `hamilocal.supervisor` runs it as one of many children.
"""
