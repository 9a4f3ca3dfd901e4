"""What one decision is, how it is made ahead, and its record."""
