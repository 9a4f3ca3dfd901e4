"""What each kind does to an object: defaults, ownership of its halves, merges of patches."""
