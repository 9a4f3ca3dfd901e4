"""Measuring what containers use, and the feedback to their limits."""
