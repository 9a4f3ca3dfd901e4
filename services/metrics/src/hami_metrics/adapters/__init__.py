"""Drivers of the metrics service."""
