"""The operators' pages at the size of a large cluster."""
