"""Between a well-formed write and the store: built-in plugins, then webhooks."""
