"""Publish facts that are written in the ledger on the bus."""
