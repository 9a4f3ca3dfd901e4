"""A real kubelet and containerd on this machine."""
