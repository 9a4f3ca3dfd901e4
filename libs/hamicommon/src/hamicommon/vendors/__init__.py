"""One module per vendor of cards, and the registry that makes them from the configuration."""
