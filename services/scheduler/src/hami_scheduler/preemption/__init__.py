"""Preemption: cards reserved for waiting pods (rooms), and the evictions that free them."""
