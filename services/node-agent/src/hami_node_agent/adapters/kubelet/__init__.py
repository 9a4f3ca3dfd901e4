"""Read the state of the kubelet and of the container runtime."""
