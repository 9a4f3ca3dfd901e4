"""Cards over time, published to the cluster."""
