"""Consequences when a node finds a container beyond its grant: history, events, eviction."""
