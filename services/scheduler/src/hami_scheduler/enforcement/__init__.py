"""React to containers that exceed their grants: history, events, eviction."""
