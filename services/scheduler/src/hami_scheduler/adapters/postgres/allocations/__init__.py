"""Grants in Postgres: each write is one transaction with its events."""
