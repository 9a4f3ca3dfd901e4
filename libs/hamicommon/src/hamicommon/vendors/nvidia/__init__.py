"""NVIDIA cards: slices, whole cards, and MIG."""
