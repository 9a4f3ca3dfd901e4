"""Pods that we did not place: adopted from HAMi, or met unmanaged."""
