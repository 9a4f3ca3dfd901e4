"""Pods of people: read from manifests, created at an API server."""
