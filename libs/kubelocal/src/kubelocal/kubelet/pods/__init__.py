"""Pods of this node, from admission to removal."""
