"""Receive, store and report the grants of this node."""
