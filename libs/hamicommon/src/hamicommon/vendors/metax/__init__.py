"""MetaX: whole GPUs and sGPUs."""
