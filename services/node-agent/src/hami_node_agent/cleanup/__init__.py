"""What nobody needs any more: directories of pods that left, older libraries."""
