"""NVIDIA's management library."""
