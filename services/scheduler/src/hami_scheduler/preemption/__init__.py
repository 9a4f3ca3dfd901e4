"""Preemption that acts: rooms for waiting pods, and the evictions that make them."""
