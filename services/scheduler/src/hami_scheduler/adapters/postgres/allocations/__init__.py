"""Grants in Postgres: each call is one transaction with its event and its announcement."""
