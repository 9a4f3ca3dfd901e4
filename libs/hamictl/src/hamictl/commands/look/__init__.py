"""Verbs that look at what is there: lists, one thing, who holds it, what waits."""
