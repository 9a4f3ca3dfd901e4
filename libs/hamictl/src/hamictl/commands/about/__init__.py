"""Verbs about hamictl itself."""
