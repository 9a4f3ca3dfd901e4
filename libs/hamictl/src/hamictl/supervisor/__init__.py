"""The process that owns every other process of the local system."""
