"""What would have made a pod fit: another request, or another cluster."""
