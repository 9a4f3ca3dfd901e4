"""Verified fakes of our ports: `tests/contract` runs the same cases on fake and real thing."""
