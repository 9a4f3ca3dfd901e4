"""Decisions and their record."""
