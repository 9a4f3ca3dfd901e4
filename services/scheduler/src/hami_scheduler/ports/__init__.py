"""Interfaces of the use cases to the outside, implemented in `adapters/`."""
