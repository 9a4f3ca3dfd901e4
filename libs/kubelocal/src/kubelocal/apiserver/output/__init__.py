"""How a stored object looks to a client: kind, list item, watch event, table."""
