"""Remove folders of pods that left, and old libraries."""
