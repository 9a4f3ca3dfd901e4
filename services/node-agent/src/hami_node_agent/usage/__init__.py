"""Measure what containers use, and adjust their limits."""
