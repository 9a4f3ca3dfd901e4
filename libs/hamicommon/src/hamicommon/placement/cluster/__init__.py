"""Cluster as arrays: one row per node, one column per attribute of its cards."""
