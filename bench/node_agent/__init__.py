"""Cost of the node-agent."""
