"""Choose nodes and cards, record decisions, and retry waiting pods."""
