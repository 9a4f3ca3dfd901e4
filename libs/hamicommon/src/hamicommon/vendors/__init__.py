"""Vendors of cards, one module each, and the registry of those that are configured."""
