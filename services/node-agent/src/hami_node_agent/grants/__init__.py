"""What this node was granted: from the bus, on disk, in limits files."""
