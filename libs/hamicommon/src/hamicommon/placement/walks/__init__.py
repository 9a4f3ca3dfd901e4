"""What walks of the nodes found, kept by row of the view for pods of the same shape."""
