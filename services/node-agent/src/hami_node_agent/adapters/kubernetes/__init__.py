"""The API server: this node's pods and its Node object."""
