"""Tables of all nodes and of all pods that hold slices: to find one, and to compare."""
