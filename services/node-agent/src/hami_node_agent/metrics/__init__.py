"""Prometheus metrics of the agent, over HTTP."""
