"""Real servers on this machine: PostgreSQL, NATS, Valkey, and for tests a real control plane.

Each module turns a data folder into a `ServerPlan` (what to run, where it will answer, how to ask
whether it is ready). `hamilocal.servers.processes` runs a plan by itself (tests);
`hamilocal.supervisor` runs it as one of many children.
"""
