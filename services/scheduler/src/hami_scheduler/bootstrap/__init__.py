"""Construct the service from its parts; only these modules import the adapters."""
