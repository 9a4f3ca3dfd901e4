"""Preemption that counts slices: the pods to evict so that a pending pod fits."""
