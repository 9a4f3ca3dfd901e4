"""Served resources, and the fields of their objects."""
