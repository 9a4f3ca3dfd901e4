"""Redis: the node locks."""
