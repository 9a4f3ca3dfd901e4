"""NVIDIA: slices of a card, and MIG."""
