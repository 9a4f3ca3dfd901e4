"""The pure placement engine: which node, which cards, or why not."""
