"""Wiring: the only importer of the adapters."""
