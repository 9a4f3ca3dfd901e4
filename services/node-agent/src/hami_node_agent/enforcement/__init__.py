"""Limits checked from outside: what the driver reports of each process, compared with its grant."""
