"""Removal of directories of pods that left and of older libraries."""
