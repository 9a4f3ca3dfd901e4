"""Grants of this node: from the bus, on disk, in limits files."""
