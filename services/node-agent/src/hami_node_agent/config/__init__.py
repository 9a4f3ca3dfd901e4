"""Read settings, HAMi's flags, and the node's own configuration."""
