"""Nodes and cards in Postgres: written from reports, read for the view."""
