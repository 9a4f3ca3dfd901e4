"""Pods that HAMi started, or that came past us: what they hold, and our records of it."""
