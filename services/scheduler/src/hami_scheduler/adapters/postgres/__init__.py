"""Ledger in PostgreSQL."""
