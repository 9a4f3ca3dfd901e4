"""Read and write this node's pods and its Node object at the API server."""
