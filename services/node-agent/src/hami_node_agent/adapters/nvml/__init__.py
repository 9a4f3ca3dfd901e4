"""Access to NVIDIA's management library (NVML)."""
