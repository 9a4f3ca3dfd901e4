"""Construct the agent from its parts; only these modules import the adapters."""
