"""Admission: what the webhook changes or refuses in a pod that is created, and its registration."""
