"""hami-node-agent: device plugin, limits and usage of one node."""
