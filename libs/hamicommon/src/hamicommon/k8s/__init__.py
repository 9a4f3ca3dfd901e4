"""Contents of Kubernetes objects that we read and write, and the client for them."""
