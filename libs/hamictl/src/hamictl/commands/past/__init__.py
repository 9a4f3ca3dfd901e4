"""Verbs about what was: traces, use, and named questions."""
