"""Ports of the use cases in domain terms; `adapters/` implements them."""
