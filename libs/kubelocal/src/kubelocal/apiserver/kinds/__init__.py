"""Rules of each kind for its objects: defaults, ownership of its halves, merges of patches."""
