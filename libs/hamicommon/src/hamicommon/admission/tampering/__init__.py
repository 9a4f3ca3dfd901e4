"""What in a pod's spec undoes slices: found, and refused or stripped."""
