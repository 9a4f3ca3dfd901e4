"""The objects, their versions and their recent changes."""
