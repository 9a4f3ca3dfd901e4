"""Many grants by one statement with one commit."""
