"""Findings of walks of the nodes, kept by row of the view for pods of the same shape."""
