"""Containers as local processes: what they get, how they start, when again."""
