"""Verbs that a person types after `hamictl`, one module per group of commands."""
