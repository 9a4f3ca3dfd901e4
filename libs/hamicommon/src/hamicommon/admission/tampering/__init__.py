"""Parts of a pod's spec that undo slices: found, and refused or stripped."""
