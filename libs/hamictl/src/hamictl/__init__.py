"""Command line of HAMi for users and operators."""
