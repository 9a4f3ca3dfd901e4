"""Data types and pure functions of the metrics service."""
