"""Access to NVML, Kubernetes, the bus, the kubelet and the host's files."""
