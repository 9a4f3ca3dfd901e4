"""Admission: built-in plugins, then webhooks, before a write is stored."""
