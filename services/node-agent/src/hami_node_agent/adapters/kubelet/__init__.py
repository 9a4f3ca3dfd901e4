"""What the kubelet and the container runtime report."""
