"""Pods that HAMi started: what they hold, and our records of it."""
