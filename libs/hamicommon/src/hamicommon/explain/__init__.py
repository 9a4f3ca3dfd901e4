"""Explain why a pod is on its node, or waits, from the stored decision. Pure."""
