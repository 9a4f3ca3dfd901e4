"""Reports of the kubelet and of the container runtime."""
