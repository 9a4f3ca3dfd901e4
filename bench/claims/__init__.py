"""Pods by each way of asking for a slice, beside each other: limits, claims, no card."""
