"""hami-node-agent."""
