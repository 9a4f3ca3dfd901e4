"""Emulated Kubernetes: API server, scheduler, kubelet, controllers. Independent of HAMi."""
