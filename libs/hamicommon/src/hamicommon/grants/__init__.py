"""Grants, and the scheduler's signature on them."""
