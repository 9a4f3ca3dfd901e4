"""Follow the node's cards, and publish them to the cluster."""
