"""What becomes of it when a node finds a container beyond its grant: history, events, eviction."""
