"""What we read from and write to Kubernetes objects, and the client that carries it."""
