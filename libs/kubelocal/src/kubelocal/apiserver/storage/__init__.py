"""Storage of objects, with versions and recent changes."""
