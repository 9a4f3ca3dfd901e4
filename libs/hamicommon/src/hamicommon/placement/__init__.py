"""Placement engine: choose node and cards for a pod, or explain why none fits. Pure."""
