"""Kueue in front of slices: objects for its queues, and Workloads as cards."""

API = "/apis/kueue.x-k8s.io/v1beta2"
CONTROLLER = "hami.io/fits-as-slices"
"""Name by which an AdmissionCheck of ours names its controller."""
