"""Enflame: whole GCUs and DRS slices."""
