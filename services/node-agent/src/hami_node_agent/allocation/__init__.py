"""Answer the kubelet's Allocate and PreStartContainer."""
