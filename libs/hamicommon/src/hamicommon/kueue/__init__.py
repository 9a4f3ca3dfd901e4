"""Kueue in front of slices: objects for its queues, and Jobs that it would count wrongly."""
