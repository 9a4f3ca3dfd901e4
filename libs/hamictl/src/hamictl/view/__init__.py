"""Format answers for a terminal."""
