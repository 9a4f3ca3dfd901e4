"""NVML, Kubernetes, the bus, the kubelet and the host's files, each behind one module."""
