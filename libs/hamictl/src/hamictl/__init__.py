"""Command line and local system."""
