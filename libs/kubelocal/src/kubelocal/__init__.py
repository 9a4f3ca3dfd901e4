"""An emulated Kubernetes: API server, scheduling loop, kubelet, controllers. Knows no HAMi."""
