"""Find parts of a pod's spec that would bypass its limits, and refuse or remove them."""
