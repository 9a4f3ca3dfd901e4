"""Admission: what happens to a pod when it is created, and how the webhook is registered."""
