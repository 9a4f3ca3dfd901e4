"""Kueue for slices: the objects of its queues, and the cards that a Workload requests."""

API = "/apis/kueue.x-k8s.io/v1beta2"
CONTROLLER = "hami.io/fits-as-slices"
"""Controller name that our AdmissionChecks state in `spec.controllerName`."""
