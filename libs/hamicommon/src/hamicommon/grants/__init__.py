"""Grants that the scheduler gives to nodes, and its signature on them."""
