"""What the author of a pod will not have meant: misspelt names, odd requests."""
