"""What the pages show, as plain values; pure."""
